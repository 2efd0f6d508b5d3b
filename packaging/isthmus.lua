-- A module for Lmod: module load isthmus/@VERSION@
-- Load the MPI first; then isthmus env says the rest: eval "$(isthmus env --mpi mpich)"
help([[
Isthmus carries MPI messages and files between far-apart sites.
  eval "$(isthmus env --mpi mpich)"    or openmpi, intel: the MPI of this job uses Isthmus
  isthmus cp FILE user@host:PATH       copy a file
  isthmus doctor                       what is wrong here, and what to change
]])
whatis("Name: Isthmus")
whatis("Version: @VERSION@")
whatis("Description: MPI and files between far-apart sites")
whatis("URL: https://github.com/isthmus-hpc/isthmus")

prepend_path("PATH", "@PREFIX@/bin")
prepend_path("MANPATH", "@PREFIX@/share/man")
-- The empty part stands for the system's own pages, which man would not look for otherwise.
append_path("MANPATH", "")
prepend_path("CPATH", "@PREFIX@/include")
prepend_path("LIBRARY_PATH", "@LIBDIR@")
prepend_path("LD_LIBRARY_PATH", "@LIBDIR@")
prepend_path("PKG_CONFIG_PATH", "@LIBDIR@/pkgconfig")
-- Which provider an MPI takes is said by isthmus env, so loading this changes no job by itself.
prepend_path("FI_PROVIDER_PATH", "@LIBDIR@/isthmus")
