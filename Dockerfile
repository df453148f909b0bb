# Three images; a plain `docker build .` makes the first.
#
#   cpu     calibrates, predicts and serves on a CPU; with OpenVINO: --build-arg LOCK=serve-openvino
#   gpu     the same on an NVIDIA GPU: --target gpu
#   train   also trains, imports, exports and draws reports, on either: --target train
#
#   docker build -t florilege .
#   docker run --rm --read-only --tmpfs /tmp -p 8000:8000 -v "$PWD/bundle:/bundle:ro" florilege
#
# Every package is locked with hashes in requirements/. The bundle is mounted at /bundle or copied
# there by a Dockerfile of yours; nothing is downloaded at start. docs/deploy.md has the rest.

# Name another Python, a copy of yours or a digest: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim

# What installs stays in these stages: the virtual environments have no pip.
FROM ${BASE} AS build
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 \
    PIP_PYTHON=/opt/florilege/bin/python
RUN python -m venv --without-pip /opt/florilege

FROM build AS build-train
COPY requirements/train.txt requirements/
RUN pip install --require-hashes -r requirements/train.txt
COPY . .
RUN pip install --no-deps --no-build-isolation .

FROM build AS build-gpu
COPY requirements/serve-gpu.txt requirements/
RUN pip install --require-hashes -r requirements/serve-gpu.txt
COPY . .
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes setuptools

FROM build AS build-cpu
ARG LOCK=serve
COPY requirements/${LOCK}.txt requirements/
RUN pip install --require-hashes -r requirements/${LOCK}.txt
COPY . .
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes setuptools


FROM ${BASE} AS base
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Florilege" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# Python images come without the bytecode of the standard library, and on a read-only root every
# start would compile it anew.
RUN python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin florilege
ENV PATH=/opt/florilege/bin:$PATH \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes sees that it is not root. The code belongs to root: whoever runs it
# can read and not change it.
USER 10001:10001
ENTRYPOINT ["florilege"]

FROM base AS serving
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
CMD ["serve", "/bundle", "--host", "0.0.0.0", "--port", "8000"]


FROM base AS train
LABEL org.opencontainers.image.description="Trains, calibrates and serves prediction sets"
COPY --from=build-train --chown=root:root /opt/florilege /opt/florilege
# What is downloaded or drawn up once stays beside the data: the root is read-only.
ENV XDG_CACHE_HOME=/data/.cache \
    MPLCONFIGDIR=/data/.cache/matplotlib
WORKDIR /data
CMD ["--help"]

FROM serving AS gpu
LABEL org.opencontainers.image.description="Serves prediction sets on an NVIDIA GPU"
COPY --from=build-gpu --chown=root:root /opt/florilege /opt/florilege
# CUDA and cuDNN come as packages, the driver from the host. Without a GPU the server refuses to
# start; --device auto falls back on the CPU.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    FLORILEGE_SERVE_DEVICE=cuda

FROM serving AS cpu
LABEL org.opencontainers.image.description="Serves prediction sets on a CPU"
COPY --from=build-cpu --chown=root:root /opt/florilege /opt/florilege
