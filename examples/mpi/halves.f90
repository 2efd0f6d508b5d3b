! One half of a job's ranks sends a file and an array to the other half, in Fortran.
!
!   mpiexec -n 3 ./halves FOLDER
!
! The halves stand for two applications: those would call isthmus_accept and
! isthmus_connect with a port's name, such as 'file:/shared/port', instead of isthmus_couple.
program halves
    use mpi
    use isthmus_mpi
    use, intrinsic :: iso_c_binding
    implicit none

    type(c_ptr) :: coupling
    type(isthmus_mpi_options) :: options
    type(isthmus_mpi_report) :: report
    real(c_double), allocatable, target :: numbers(:)
    character(1000) :: folder
    integer :: rank, ranks, senders, side, other, mine, members, error, i, first
    logical :: sends

    call mpi_init(error)
    call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
    call mpi_comm_size(MPI_COMM_WORLD, ranks, error)
    call get_command_argument(1, folder)
    senders = ranks/2
    sends = rank < senders
    call mpi_comm_split(MPI_COMM_WORLD, merge(0, 1, sends), rank, side, error)
    call mpi_comm_rank(side, mine, error)
    call mpi_comm_size(side, members, error)
    call mpi_intercomm_create(side, 0, MPI_COMM_WORLD, merge(senders, 0, sends), 1, other, error)

    if (rank == 0) then
        open (10, file=trim(folder)//'/source', access='stream', form='unformatted', status='replace')
        write (10) [(real(i, c_double), i=1, 100000)]
        close (10)
    end if
    call mpi_barrier(side, error)

    call check(isthmus_couple(side, other, coupling), ISTHMUS_MPI_SUCCESS)
    options%block = 65536
    if (sends) then
        call check(isthmus_send_file(coupling, trim(folder)//'/source', 0_c_int64_t, -1_c_int64_t, options, report), 0)
    else
        call check(isthmus_receive_file(coupling, trim(folder)//'/copy', -1_c_int64_t, options, report), 0)
    end if
    if (report%bytes /= 800000 .or. report%has_digest /= 1) call fail('another report')

    ! A thousand numbers, which each side's ranks hold in equal shares and a rest.
    first = 1000*mine/members
    allocate (numbers(1000*(mine + 1)/members - first))
    if (sends) then
        numbers = [(real(first + i, c_double), i=1, size(numbers))]
        call check(isthmus_send_array(coupling, c_loc(numbers), 8_c_int64_t*size(numbers)), 0)
    else
        numbers = 0
        call check(isthmus_receive_array(coupling, c_loc(numbers), 8_c_int64_t*size(numbers)), 0)
        do i = 1, size(numbers)
            if (nint(numbers(i)) /= first + i) call fail('other numbers')
        end do
    end if

    ! What fails fails at all ranks alike.
    if (sends) then
        call check(isthmus_send_file(coupling, '/no/such/file', 0_c_int64_t, -1_c_int64_t), ISTHMUS_MPI_FILE)
    else
        call check(isthmus_receive_file(coupling, trim(folder)//'/copy', -1_c_int64_t), ISTHMUS_MPI_FILE)
    end if
    if (index(isthmus_error_text(), 'No such file') == 0) call fail('no text')
    call check(isthmus_uncouple(coupling), 0)

    call mpi_barrier(MPI_COMM_WORLD, error)
    if (rank == 0) print '(a, i0, a)', 'OK halves: ', report%bytes, ' bytes'
    call mpi_finalize(error)

contains

    subroutine check(status, wanted)
        integer, intent(in) :: status, wanted
        if (status /= wanted) call fail(isthmus_error_text())
    end subroutine

    subroutine fail(text)
        character(*), intent(in) :: text
        print '(2a)', 'FAIL halves: ', text
        call mpi_abort(MPI_COMM_WORLD, 1, error)
    end subroutine
end program
