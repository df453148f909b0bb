"""What is measured, as ratios inside one run; nothing that is served imports it."""

from florilege.cores import wait_without_spinning

wait_without_spinning()  # here, because benchmarks import torch before they run
