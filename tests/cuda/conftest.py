"""Compile the kernels for the host, once for all tests of this folder."""

import shutil

import pytest


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory):
    from host_kernels import HostKernels

    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to compile the kernels for the host")
    return HostKernels("linear_logprob", compiler, tmp_path_factory.mktemp("host"))
