! Two applications, each with an MPI of its own: messages from rank to rank, then an array, then a
! file, in Fortran.
!
!   mpiexec -n 2 ./two_mpis 1 file:/shared/at COPY
!   mpiexec -n 3 ./two_mpis 2 file:/shared/at SOURCE
!
! Part 2 sends the array and the file. two_mpis.c and two_mpis.py do the same, and couple with this program.
program two_mpis
    use isthmus_mpi
    use, intrinsic :: iso_c_binding
    implicit none
    include 'mpif.h'

    integer, parameter :: numbers = 1000, tag = 7
    type(c_ptr) :: coupling, request
    type(isthmus_mpi_options) :: options
    type(isthmus_mpi_report) :: report
    real(c_double), allocatable, target :: values(:)
    integer(c_int64_t), target :: mine, heard
    character(1000) :: word, at, path
    integer :: part, rank, ranks, first, there, i, error

    call mpi_init(error)
    call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
    call mpi_comm_size(MPI_COMM_WORLD, ranks, error)
    call get_command_argument(1, word)
    call get_command_argument(2, at)
    call get_command_argument(3, path)
    read (word, *) part

    call check(isthmus_couple(MPI_COMM_WORLD, trim(at), part, coupling, patience=60.0_c_double))

    ! Every rank tells every rank of the other side its number, and hears theirs.
    mine = rank
    do there = 0, isthmus_remote_ranks(coupling) - 1
        call check(isthmus_ireceive(coupling, c_loc(heard), 8_c_int64_t, there, tag, request))
        call check(isthmus_send(coupling, c_loc(mine), 8_c_int64_t, there, tag))
        call check(isthmus_wait(request))
        if (heard /= there) call fail("another rank's number")
    end do

    ! Numbers that each application's ranks hold in equal shares and a rest.
    first = numbers*rank/ranks
    allocate (values(numbers*(rank + 1)/ranks - first))
    if (part == 2) then
        values = [(real(first + i - 1, c_double), i=1, size(values))]
        call check(isthmus_send_array(coupling, c_loc(values), 8_c_int64_t*size(values)))
        call check(isthmus_send_file(coupling, trim(path), 0_c_int64_t, -1_c_int64_t, options, report))
    else
        values = -1
        call check(isthmus_receive_array(coupling, c_loc(values), 8_c_int64_t*size(values)))
        call check(isthmus_receive_file(coupling, trim(path), -1_c_int64_t, options, report))
    end if
    do i = 1, size(values)
        if (nint(values(i)) /= first + i - 1) call fail('other numbers')
    end do
    if (rank == 0) print '(a, i0, a, i0, a, i0, a)', 'OK two_mpis: part ', part, ' in Fortran, ', &
        isthmus_remote_ranks(coupling), ' ranks there, ', report%bytes, ' bytes'
    call check(isthmus_uncouple(coupling))
    call mpi_finalize(error)

contains

    subroutine check(status)
        integer, intent(in) :: status
        if (status /= ISTHMUS_MPI_SUCCESS) call fail(isthmus_error_text())
    end subroutine

    subroutine fail(text)
        character(*), intent(in) :: text
        print '(2a)', 'FAIL two_mpis: ', text
        call mpi_abort(MPI_COMM_WORLD, 1, error)
    end subroutine
end program
