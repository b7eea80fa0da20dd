# Images with lingo, for processors and for NVIDIA GPUs:
#
#     docker build --build-arg DEVICE=gpu --tag lingo:gpu .
#
# The packages bring CUDA; the host needs NVIDIA's driver and container toolkit. Tests of lingo do
# not build this file.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG DEVICE=cpu

COPY pyproject.toml hatch_build.py README.md CHANGELOG.md LICENSE /src/
COPY lingo /src/lingo
COPY tasks /src/tasks
COPY params /src/params
RUN case "$DEVICE" in \
        cpu) extras=mesh,gcs,s3 ;; \
        gpu) extras=gpu,mesh-gpu,gcs,s3 ;; \
        *) echo "DEVICE is $DEVICE, not cpu or gpu" >&2; exit 1 ;; \
    esac \
    && pip install --no-cache-dir "/src[$extras]" \
    && rm -r /src
ENV PYTHONUNBUFFERED=1
CMD ["lingo", "list"]
