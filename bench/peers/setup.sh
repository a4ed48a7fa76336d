#!/bin/sh
# setup.sh DIR - a Python environment in DIR with the engines that peers.py compares with.
# llama-cpp-python is built from source for this processor; CMAKE_ARGS in the environment adds to
# that: CMAKE_ARGS='-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90' for an H200. MLX is left out where
# PyPI has none for this machine; MLX=mlx[cuda13] takes the one for NVIDIA GPUs.
set -eu
[ $# -eq 1 ] || { echo "usage: bench/peers/setup.sh DIR" >&2; exit 2; }
python3 -m venv "$1"
"$1/bin/pip" install --quiet --upgrade pip numpy gguf
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF ${CMAKE_ARGS:-}" \
    "$1/bin/pip" install --no-binary llama-cpp-python llama-cpp-python
case $(uname -s) in
Linux) mlx='mlx[cpu]' ;;
*) mlx=mlx ;;
esac
"$1/bin/pip" install --quiet "${MLX:-$mlx}" mlx-lm || echo "setup.sh: no MLX here" >&2
echo "$1/bin/python bench/peers/peers.py --help"
