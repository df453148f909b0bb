# The server on a CPU. The bundle is mounted at /bundle; nothing is downloaded at start.
#
#   docker build -t florilege .
#   docker run --rm --read-only --tmpfs /tmp -p 8000:8000 -v "$PWD/bundle:/bundle:ro" florilege

FROM python:3.11-slim AS build
WORKDIR /source
# A virtual environment without pip: what installs it stays in this stage.
RUN python -m venv --without-pip /opt/florilege
COPY requirements/serve.txt requirements/
RUN pip --python /opt/florilege/bin/python install --no-cache-dir --require-hashes -r requirements/serve.txt
COPY pyproject.toml README.md LICENSE florilege.py ./
COPY calibration calibration
COPY data data
COPY florilege_client florilege_client
COPY models models
COPY server server
COPY training training
RUN pip --python /opt/florilege/bin/python install --no-cache-dir --no-deps .

FROM python:3.11-slim
ENV PATH=/opt/florilege/bin:$PATH \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin florilege
# The code belongs to root: the server can read and not change it.
COPY --from=build --chown=root:root /opt/florilege /opt/florilege
USER florilege
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
ENTRYPOINT ["florilege"]
CMD ["serve", "/bundle", "--host", "0.0.0.0", "--port", "8000"]
