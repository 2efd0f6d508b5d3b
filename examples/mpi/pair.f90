! One of two applications that come together by a port: it sends a file and an array, or receives
! them, in Fortran.
!
!   mpiexec -n 2 ./pair receive file:/shared/port COPY
!   mpiexec -n 3 ./pair send file:/shared/port SOURCE
!
! The array is of a thousand numbers, which each application's ranks hold in equal shares and a rest.
program pair
    use isthmus_mpi
    use, intrinsic :: iso_c_binding
    implicit none
    include 'mpif.h'

    type(c_ptr) :: coupling
    type(isthmus_mpi_options) :: options
    type(isthmus_mpi_report) :: report
    real(c_double), allocatable, target :: numbers(:)
    character(1000) :: what, port, path
    integer :: rank, ranks, first, i, error
    logical :: sends

    call mpi_init(error)
    call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
    call mpi_comm_size(MPI_COMM_WORLD, ranks, error)
    call get_command_argument(1, what)
    call get_command_argument(2, port)
    call get_command_argument(3, path)
    sends = what == 'send'
    first = 1000*rank/ranks
    allocate (numbers(1000*(rank + 1)/ranks - first))

    if (sends) then
        numbers = [(real(first + i, c_double), i=1, size(numbers))]
        call check(isthmus_connect(MPI_COMM_WORLD, trim(port), coupling, 60.0_c_double))
        call check(isthmus_send_file(coupling, trim(path), 0_c_int64_t, -1_c_int64_t, options, report))
        call check(isthmus_send_array(coupling, c_loc(numbers), 8_c_int64_t*size(numbers)))
    else
        numbers = 0
        call check(isthmus_accept(MPI_COMM_WORLD, trim(port), coupling))
        call check(isthmus_receive_file(coupling, trim(path), -1_c_int64_t, options, report))
        call check(isthmus_receive_array(coupling, c_loc(numbers), 8_c_int64_t*size(numbers)))
    end if
    do i = 1, size(numbers)
        if (nint(numbers(i)) /= first + i) call fail('other numbers')
    end do
    call check(isthmus_uncouple(coupling))
    if (rank == 0) print '(3a, i0, a)', 'OK ', trim(what), ': ', report%bytes, ' bytes'
    call mpi_finalize(error)

contains

    subroutine check(status)
        integer, intent(in) :: status
        if (status /= ISTHMUS_MPI_SUCCESS) call fail(isthmus_error_text())
    end subroutine

    subroutine fail(text)
        character(*), intent(in) :: text
        print '(2a)', 'FAIL pair: ', text
        call mpi_abort(MPI_COMM_WORLD, 1, error)
    end subroutine
end program
