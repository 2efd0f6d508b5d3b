! Files and arrays from one running MPI application to another, for Fortran.
!
! What isthmus-mpi.h says holds here. Communicators are integers, as `use mpi` has them (of
! `use mpi_f08`: comm%mpi_val). Compile this file with the program, and link libisthmus-mpi:
!
!   mpif90 isthmus_mpi.f90 program.f90 $(pkg-config --libs isthmus-mpi)
module isthmus_mpi
    use, intrinsic :: iso_c_binding
    implicit none
    private

    integer, parameter, public :: ISTHMUS_MPI_SUCCESS = 0, ISTHMUS_MPI_INVALID = 1, ISTHMUS_MPI_COUPLING = 2, &
        ISTHMUS_MPI_FILE = 3, ISTHMUS_MPI_SPACE = 4, ISTHMUS_MPI_CHANGED = 5, ISTHMUS_MPI_MISMATCH = 6, &
        ISTHMUS_MPI_DAMAGED = 7, ISTHMUS_MPI_MEMORY = 8, ISTHMUS_MPI_LOST = 9
    integer(c_int32_t), parameter, public :: ISTHMUS_MPI_POSIX = 0, ISTHMUS_MPI_MPIIO = 1
    integer(c_int32_t), parameter, public :: ISTHMUS_MPI_MEASURED = 0, ISTHMUS_MPI_DIRECT = 1, ISTHMUS_MPI_CACHED = 2

    type, bind(c), public :: isthmus_mpi_options
        integer(c_int64_t) :: block = 0, memory = 0
        integer(c_int32_t) :: threads = 0, io = 0, sync = 0, direct = 0, in_turn = 0
        integer(c_int32_t) :: reserved(7) = 0
    end type

    type, bind(c), public :: isthmus_mpi_report
        integer(c_int64_t) :: bytes = 0, block = 0
        real(c_double) :: seconds = 0, sent_seconds = 0
        integer(c_int32_t) :: has_digest = 0
        integer(c_int8_t) :: digest(32) = 0
        integer(c_int64_t) :: resumed = 0
    end type

    public :: isthmus_accept, isthmus_connect, isthmus_couple, isthmus_uncouple
    public :: isthmus_send_file, isthmus_receive_file, isthmus_send_array, isthmus_receive_array
    public :: isthmus_send, isthmus_receive, isthmus_isend, isthmus_ireceive, isthmus_wait, isthmus_test
    public :: isthmus_remote_ranks
    public :: isthmus_error_text

    ! With another application of any MPI, by the place where both meet:
    !   isthmus_couple(comm, at, part, coupling, secret, patience)
    ! or over an inter-communicator:
    !   isthmus_couple(comm, other, coupling)
    interface isthmus_couple
        module procedure couple_at, couple_over
    end interface

    interface
        integer(c_int) function couple_at_c(comm, at, part, secret, patience, coupling) bind(c, name='isthmus_couple_f')
            import :: c_int, c_int32_t, c_char, c_ptr, c_double
            integer(c_int32_t), value :: comm
            character(kind=c_char), intent(in) :: at(*), secret(*)
            integer(c_int), value :: part
            real(c_double), value :: patience
            type(c_ptr), intent(out) :: coupling
        end function
        integer(c_int) function isthmus_remote_ranks(coupling) bind(c, name='isthmus_mpi_remote_ranks')
            import :: c_int, c_ptr
            type(c_ptr), value :: coupling
        end function
        ! Messages go by their address: c_loc(data). A request is a pointer, c_null_ptr once it has ended.
        integer(c_int) function isthmus_send(coupling, data, bytes, rank, tag) bind(c, name='isthmus_mpi_send')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: coupling, data
            integer(c_int64_t), value :: bytes
            integer(c_int), value :: rank, tag
        end function
        integer(c_int) function isthmus_receive(coupling, data, room, rank, tag, bytes) bind(c, name='isthmus_mpi_receive')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: coupling, data
            integer(c_int64_t), value :: room
            integer(c_int), value :: rank, tag
            integer(c_int64_t), intent(out), optional :: bytes
        end function
        integer(c_int) function isthmus_isend(coupling, data, bytes, rank, tag, request) bind(c, name='isthmus_mpi_isend')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: coupling, data
            integer(c_int64_t), value :: bytes
            integer(c_int), value :: rank, tag
            type(c_ptr), intent(out) :: request
        end function
        integer(c_int) function isthmus_ireceive(coupling, data, room, rank, tag, request) &
            bind(c, name='isthmus_mpi_ireceive')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: coupling, data
            integer(c_int64_t), value :: room
            integer(c_int), value :: rank, tag
            type(c_ptr), intent(out) :: request
        end function
        integer(c_int) function isthmus_wait(request, bytes) bind(c, name='isthmus_mpi_wait')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), intent(inout) :: request
            integer(c_int64_t), intent(out), optional :: bytes
        end function
        integer(c_int) function isthmus_test(request, done, bytes) bind(c, name='isthmus_mpi_test')
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), intent(inout) :: request
            integer(c_int), intent(out) :: done
            integer(c_int64_t), intent(out), optional :: bytes
        end function
        integer(c_int) function accept_c(comm, port, coupling) bind(c, name='isthmus_mpi_accept_f')
            import :: c_int, c_int32_t, c_char, c_ptr
            integer(c_int32_t), value :: comm
            character(kind=c_char), intent(in) :: port(*)
            type(c_ptr), intent(out) :: coupling
        end function
        integer(c_int) function connect_c(comm, port, patience, coupling) bind(c, name='isthmus_mpi_connect_f')
            import :: c_int, c_int32_t, c_char, c_ptr, c_double
            integer(c_int32_t), value :: comm
            character(kind=c_char), intent(in) :: port(*)
            real(c_double), value :: patience
            type(c_ptr), intent(out) :: coupling
        end function
        integer(c_int) function couple_c(comm, other, coupling) bind(c, name='isthmus_mpi_couple_f')
            import :: c_int, c_int32_t, c_ptr
            integer(c_int32_t), value :: comm, other
            type(c_ptr), intent(out) :: coupling
        end function
        integer(c_int) function isthmus_uncouple(coupling) bind(c, name='isthmus_mpi_uncouple')
            import :: c_int, c_ptr
            type(c_ptr), value :: coupling
        end function
        integer(c_int) function send_file_c(coupling, path, offset, length, options, report) &
            bind(c, name='isthmus_mpi_send_file')
            import :: c_int, c_int64_t, c_char, c_ptr, isthmus_mpi_options, isthmus_mpi_report
            type(c_ptr), value :: coupling
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int64_t), value :: offset, length
            type(isthmus_mpi_options), intent(in), optional :: options
            type(isthmus_mpi_report), intent(out), optional :: report
        end function
        integer(c_int) function receive_file_c(coupling, path, offset, options, report) &
            bind(c, name='isthmus_mpi_receive_file')
            import :: c_int, c_int64_t, c_char, c_ptr, isthmus_mpi_options, isthmus_mpi_report
            type(c_ptr), value :: coupling
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int64_t), value :: offset
            type(isthmus_mpi_options), intent(in), optional :: options
            type(isthmus_mpi_report), intent(out), optional :: report
        end function
        ! The array goes by its address: c_loc(array).
        integer(c_int) function isthmus_send_array(coupling, data, bytes, options, report) &
            bind(c, name='isthmus_mpi_send_array')
            import :: c_int, c_int64_t, c_ptr, isthmus_mpi_options, isthmus_mpi_report
            type(c_ptr), value :: coupling, data
            integer(c_int64_t), value :: bytes
            type(isthmus_mpi_options), intent(in), optional :: options
            type(isthmus_mpi_report), intent(out), optional :: report
        end function
        integer(c_int) function isthmus_receive_array(coupling, data, bytes, options, report) &
            bind(c, name='isthmus_mpi_receive_array')
            import :: c_int, c_int64_t, c_ptr, isthmus_mpi_options, isthmus_mpi_report
            type(c_ptr), value :: coupling, data
            integer(c_int64_t), value :: bytes
            type(isthmus_mpi_options), intent(in), optional :: options
            type(isthmus_mpi_report), intent(out), optional :: report
        end function
        type(c_ptr) function last_error_c() bind(c, name='isthmus_mpi_last_error')
            import :: c_ptr
        end function
        integer(c_size_t) function strlen(text) bind(c)
            import :: c_size_t, c_ptr
            type(c_ptr), value :: text
        end function
    end interface

contains

    integer function isthmus_accept(comm, port, coupling) result(status)
        integer, intent(in) :: comm
        character(*), intent(in) :: port
        type(c_ptr), intent(out) :: coupling
        status = accept_c(int(comm, c_int32_t), trim(port)//c_null_char, coupling)
    end function

    integer function isthmus_connect(comm, port, coupling, patience) result(status)
        integer, intent(in) :: comm
        character(*), intent(in) :: port
        type(c_ptr), intent(out) :: coupling
        real(c_double), intent(in), optional :: patience
        real(c_double) :: seconds
        seconds = 0
        if (present(patience)) seconds = patience
        status = connect_c(int(comm, c_int32_t), trim(port)//c_null_char, seconds, coupling)
    end function

    ! `part` is 1 or 2. Without a place part 1 prints its address.
    integer function couple_at(comm, at, part, coupling, secret, patience) result(status)
        integer, intent(in) :: comm, part
        character(*), intent(in) :: at
        type(c_ptr), intent(out) :: coupling
        character(*), intent(in), optional :: secret
        real(c_double), intent(in), optional :: patience
        character(:), allocatable :: file
        real(c_double) :: seconds
        seconds = 0
        file = ''
        if (present(patience)) seconds = patience
        if (present(secret)) file = trim(secret)
        status = couple_at_c(int(comm, c_int32_t), trim(at)//c_null_char, int(part, c_int), file//c_null_char, seconds, coupling)
    end function

    integer function couple_over(comm, other, coupling) result(status)
        integer, intent(in) :: comm, other
        type(c_ptr), intent(out) :: coupling
        status = couple_c(int(comm, c_int32_t), int(other, c_int32_t), coupling)
    end function

    integer function isthmus_send_file(coupling, path, offset, length, options, report) result(status)
        type(c_ptr), intent(in) :: coupling
        character(*), intent(in) :: path
        integer(c_int64_t), intent(in) :: offset, length
        type(isthmus_mpi_options), intent(in), optional :: options
        type(isthmus_mpi_report), intent(out), optional :: report
        status = send_file_c(coupling, trim(path)//c_null_char, offset, length, options, report)
    end function

    integer function isthmus_receive_file(coupling, path, offset, options, report) result(status)
        type(c_ptr), intent(in) :: coupling
        character(*), intent(in) :: path
        integer(c_int64_t), intent(in) :: offset
        type(isthmus_mpi_options), intent(in), optional :: options
        type(isthmus_mpi_report), intent(out), optional :: report
        status = receive_file_c(coupling, trim(path)//c_null_char, offset, options, report)
    end function

    function isthmus_error_text() result(text)
        character(:), allocatable :: text
        character(kind=c_char), pointer :: bytes(:)
        type(c_ptr) :: from
        integer :: i
        from = last_error_c()
        call c_f_pointer(from, bytes, [strlen(from)])
        allocate (character(size(bytes)) :: text)
        do i = 1, size(bytes)
            text(i:i) = bytes(i)
        end do
    end function
end module
