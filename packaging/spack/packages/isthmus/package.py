# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Isthmus(Package):
    """MPI and files between far-apart HPC sites: a libfabric provider that MPICH, Open MPI and
    Intel MPI load, the commands isthmus and isthmus-cp, and a C library."""

    homepage = "https://github.com/isthmus-hpc/isthmus"
    git = "https://github.com/isthmus-hpc/isthmus.git"

    license("Apache-2.0")

    # A release is added here by its tag and commit, once it is made.
    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    # Cargo fetches what Cargo.lock names.
    depends_on("rust@1.95:", type="build")

    def install(self, spec, prefix):
        make("build")
        make("install", f"PREFIX={prefix}")

    def setup_run_environment(self, env):
        # Which provider an MPI takes is said by isthmus env, so loading this changes no job by
        # itself.
        env.prepend_path("FI_PROVIDER_PATH", self.prefix.lib.isthmus)
