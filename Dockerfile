# vitreous in a container, as an ordinary user. Build: docker build --tag vitreous .   Use: docs/guide/scale.md
FROM python:3.12.11-slim-bookworm

# TORCH_INDEX: empty takes the torch that pip finds under the pin of constraints.txt; else the address of an index,
# such as PyTorch's own for a CUDA version.  EXTRAS: optional parts of vitreous.
ARG TORCH_INDEX=""
ARG EXTRAS="fast,data,heic"

ENV VIRTUAL_ENV=/opt/vitreous/env \
    PATH=/opt/vitreous/env/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    OMP_WAIT_POLICY=PASSIVE

RUN useradd --create-home --uid 1000 vitreous \
    && install --directory --owner vitreous --group vitreous /opt/vitreous /data

USER 1000:1000
WORKDIR /opt/vitreous/source

COPY --chown=1000:1000 pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=1000:1000 src ./src

RUN python -m venv "$VIRTUAL_ENV" \
    && if [ -n "$TORCH_INDEX" ]; then pip install --constraint constraints.txt --index-url "$TORCH_INDEX" torch; fi \
    && pip install --constraint constraints.txt ".[$EXTRAS]"

WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["vitreous"]
CMD ["--help"]
