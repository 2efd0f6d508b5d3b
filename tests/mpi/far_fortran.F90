! Each collective that the collectives library covers, called from Fortran, with results that can be reckoned.
!
! Compiled three times: by mpif.h, -DUSE_MPI by `use mpi`, -DUSE_MPI_F08 by `use mpi_f08`. For any number of ranks.
! The test that runs it looks at what the library says of its calls.
#ifdef USE_MPI_F08
#define HANDLE(kind) type(kind)
#else
#define HANDLE(kind) integer
#endif
program far_fortran
#if defined(USE_MPI_F08)
   use mpi_f08
#elif defined(USE_MPI)
   use mpi
#endif
   implicit none
#if !defined(USE_MPI_F08) && !defined(USE_MPI)
   include 'mpif.h'
#endif
   integer, parameter :: long = 1000
   integer :: rank, ranks, error, i, provided
   integer, allocatable :: counts(:), displs(:), one(:), many(:), back(:)
   ! MPI writes to it behind the compiler's back.
   integer, volatile :: wide(4*long)
   double precision :: vector(long), total(long)
   HANDLE(MPI_Datatype) :: strided
   HANDLE(MPI_Comm) :: copy
   HANDLE(MPI_Request) :: request
   HANDLE(MPI_Datatype), allocatable :: types(:)
#ifndef USE_MPI_F08
   integer :: leftmost
   external :: take_left
#endif

   call MPI_Init_thread(MPI_THREAD_SINGLE, provided, error)
   call check(error == MPI_SUCCESS, 'Init_thread')
   call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
   call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
   allocate (counts(ranks), displs(ranks), one(ranks), many(ranks*ranks), back(ranks*ranks))
   allocate (types(ranks))
   counts = 1
   displs = [(i, i=0, ranks - 1)]

   call MPI_Barrier(MPI_COMM_WORLD, error)
   call check(error == MPI_SUCCESS, 'Barrier')

   vector = merge(3.5d0, 0d0, rank == ranks - 1)
   call MPI_Bcast(vector, long, MPI_DOUBLE_PRECISION, ranks - 1, MPI_COMM_WORLD, error)
   call check(all(vector == 3.5d0), 'Bcast')

   vector = [(dble(rank + i), i=1, long)]
   total = -1
   call MPI_Reduce(vector, total, long, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD, error)
   call check(rank /= 0 .or. all(total == sums()), 'Reduce')
   call MPI_Allreduce(vector, total, long, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
   call check(all(total == sums()), 'Allreduce')
   call MPI_Allreduce(MPI_IN_PLACE, vector, long, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
   call check(all(vector == sums()), 'Allreduce in place')

   i = rank + 1
   call MPI_Scan(rank, one, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
   call check(one(1) == rank*(rank + 1)/2, 'Scan')
   call MPI_Exscan(i, one, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
   call check(rank == 0 .or. one(1) == rank*(rank + 1)/2, 'Exscan')

   one = [(rank*i, i=1, ranks)]
   call MPI_Reduce_scatter(one, back, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
   call check(back(1) == (rank + 1)*ranks*(ranks - 1)/2, 'Reduce_scatter')
   call MPI_Reduce_scatter_block(MPI_IN_PLACE, one, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
   call check(one(1) == (rank + 1)*ranks*(ranks - 1)/2, 'Reduce_scatter_block in place')

   one = -1
   call MPI_Gather(rank, 1, MPI_INTEGER, one, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
   call check(rank /= 0 .or. all(one == displs), 'Gather')
   one = -1
   one(rank + 1) = rank
   if (rank == 1) then
      call MPI_Gatherv(MPI_IN_PLACE, 0, MPI_INTEGER, one, counts, displs, MPI_INTEGER, 1, MPI_COMM_WORLD, error)
   else
      call MPI_Gatherv(rank, 1, MPI_INTEGER, one, counts, displs, MPI_INTEGER, 1, MPI_COMM_WORLD, error)
   end if
   call check(rank /= 1 .or. all(one == displs), 'Gatherv in place')
   call MPI_Scatter(displs, 1, MPI_INTEGER, i, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
   call check(i == rank, 'Scatter')
   i = -1
   call MPI_Scatterv(displs, counts, displs, MPI_INTEGER, i, 1, MPI_INTEGER, 1, MPI_COMM_WORLD, error)
   call check(i == rank, 'Scatterv')

   one = -1
   call MPI_Allgather(rank, 1, MPI_INTEGER, one, 1, MPI_INTEGER, MPI_COMM_WORLD, error)
   call check(all(one == displs), 'Allgather')
   one = -1
   one(rank + 1) = rank
   call MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_INTEGER, one, counts, displs, MPI_INTEGER, MPI_COMM_WORLD, error)
   call check(all(one == displs), 'Allgatherv in place')

   many(:ranks) = [(100*rank + i, i=0, ranks - 1)]
   call MPI_Alltoall(many, 1, MPI_INTEGER, back, 1, MPI_INTEGER, MPI_COMM_WORLD, error)
   call check(all(back(:ranks) == 100*displs + rank), 'Alltoall')
   back = -1
   call MPI_Alltoallv(many, counts, displs, MPI_INTEGER, back, counts, displs, MPI_INTEGER, MPI_COMM_WORLD, error)
   call check(all(back(:ranks) == 100*displs + rank), 'Alltoallv')

   back = -1
   types = MPI_INTEGER
   call MPI_Alltoallw(many, counts, 4*displs, types, back, counts, 4*displs, types, MPI_COMM_WORLD, error)
   call check(all(back(:ranks) == 100*displs + rank), 'Alltoallw')
   call start_and_wait()

   ! A datatype with gaps, another communicator, and data by its address.
   call MPI_Type_vector(long, 1, 2, MPI_INTEGER, strided, error)
   call MPI_Type_commit(strided, error)
   call MPI_Comm_dup(MPI_COMM_WORLD, copy, error)
   wide = rank
   call MPI_Bcast(wide, 1, strided, 1, copy, error)
   call check(all(wide(1:2*long:2) == 1) .and. all(wide(2:2*long:2) == rank), 'Bcast of a datatype with gaps')
   call MPI_Type_free(strided, error)
   call bcast_by_address()
   call MPI_Comm_free(copy, error)

#ifndef USE_MPI_F08
   ! An operation that does not commute: the left operand.
   call MPI_Op_create(take_left, .false., leftmost, error)
   call MPI_Allreduce(7 + rank, i, 1, MPI_INTEGER, leftmost, MPI_COMM_WORLD, error)
   call check(i == 7, 'Allreduce by a function in Fortran')
   call MPI_Op_free(leftmost, error)
#endif

   call MPI_Barrier(MPI_COMM_WORLD, error)
   if (rank == 0) print '(a, i0, a)', 'OK far_fortran: on ', ranks, ' ranks'
   call MPI_Finalize(error)

contains

   function sums()
      double precision :: sums(long)
      integer :: k
      sums = [(dble(ranks*k) + dble(ranks*(ranks - 1)/2), k=1, long)]
   end function

   ! The same by non-blocking calls. MPI writes to these arrays behind the compiler's back, too.
   subroutine start_and_wait()
      integer, asynchronous :: sent(ranks*ranks), got(ranks*ranks), own(1), own_displs(ranks)
      own = rank
      call MPI_Ibarrier(MPI_COMM_WORLD, request, error)
      call wait_for('Ibarrier')

      got = merge(7, 0, rank == ranks - 1)
      call MPI_Ibcast(got, ranks, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD, request, error)
      call wait_for('Ibcast')
      call check(all(got(:ranks) == 7), 'Ibcast')

      sent(:ranks) = [(rank*i, i=1, ranks)]
      call MPI_Ireduce(sent, got, ranks, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, request, error)
      call wait_for('Ireduce')
      call check(rank /= 0 .or. all(got(:ranks) == [(i*ranks*(ranks - 1)/2, i=1, ranks)]), 'Ireduce')
      got(:ranks) = sent(:ranks)
      call MPI_Iallreduce(MPI_IN_PLACE, got, ranks, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, request, error)
      call wait_for('Iallreduce')
      call check(all(got(:ranks) == [(i*ranks*(ranks - 1)/2, i=1, ranks)]), 'Iallreduce in place')
      call MPI_Ireduce_scatter(sent, got, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, request, error)
      call wait_for('Ireduce_scatter')
      call check(got(1) == (rank + 1)*ranks*(ranks - 1)/2, 'Ireduce_scatter')
      call MPI_Ireduce_scatter_block(sent, got, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, request, error)
      call wait_for('Ireduce_scatter_block')
      call check(got(1) == (rank + 1)*ranks*(ranks - 1)/2, 'Ireduce_scatter_block')

      got = -1
      call MPI_Igather(own, 1, MPI_INTEGER, got, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, request, error)
      call wait_for('Igather')
      call check(rank /= 0 .or. all(got(:ranks) == displs), 'Igather')
      got = -1
      call MPI_Igatherv(own, 1, MPI_INTEGER, got, counts, displs, MPI_INTEGER, 1, MPI_COMM_WORLD, request, error)
      call wait_for('Igatherv')
      call check(rank /= 1 .or. all(got(:ranks) == displs), 'Igatherv')
      got = -1
      call MPI_Iscatter(displs, 1, MPI_INTEGER, got, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, request, error)
      call wait_for('Iscatter')
      call check(got(1) == rank, 'Iscatter')
      got = -1
      call MPI_Iscatterv(displs, counts, displs, MPI_INTEGER, got, 1, MPI_INTEGER, 1, MPI_COMM_WORLD, request, error)
      call wait_for('Iscatterv')
      call check(got(1) == rank, 'Iscatterv')

      got = -1
      call MPI_Iallgather(own, 1, MPI_INTEGER, got, 1, MPI_INTEGER, MPI_COMM_WORLD, request, error)
      call wait_for('Iallgather')
      call check(all(got(:ranks) == displs), 'Iallgather')
      got = -1
      call MPI_Iallgatherv(own, 1, MPI_INTEGER, got, counts, displs, MPI_INTEGER, MPI_COMM_WORLD, request, error)
      call wait_for('Iallgatherv')
      call check(all(got(:ranks) == displs), 'Iallgatherv')
      sent(:ranks) = [(100*rank + i, i=0, ranks - 1)]
      call MPI_Ialltoall(sent, 1, MPI_INTEGER, got, 1, MPI_INTEGER, MPI_COMM_WORLD, request, error)
      call wait_for('Ialltoall')
      call check(all(got(:ranks) == 100*displs + rank), 'Ialltoall')
      got = -1
      call MPI_Ialltoallv(sent, counts, displs, MPI_INTEGER, got, counts, displs, MPI_INTEGER, MPI_COMM_WORLD, request, error)
      call wait_for('Ialltoallv')
      call check(all(got(:ranks) == 100*displs + rank), 'Ialltoallv')
      got = -1
      own_displs = 4*displs
      call MPI_Ialltoallw(sent, counts, own_displs, types, got, counts, own_displs, types, MPI_COMM_WORLD, request, error)
      call wait_for('Ialltoallw')
      call check(all(got(:ranks) == 100*displs + rank), 'Ialltoallw')
   end subroutine

   subroutine wait_for(what)
      character(*), intent(in) :: what
      call check(error == MPI_SUCCESS, what)
      call MPI_Wait(request, MPI_STATUS_IGNORE, error)
      call check(error == MPI_SUCCESS, 'Wait for '//what)
   end subroutine

   subroutine bcast_by_address()
      integer(kind=MPI_ADDRESS_KIND) :: address(1)
      HANDLE(MPI_Datatype) :: types(1), absolute
      integer :: lengths(1)
      wide = rank
      lengths = long
      types(1) = MPI_INTEGER
      call MPI_Get_address(wide, address(1), error)
      call MPI_Type_create_struct(1, lengths, address, types, absolute, error)
      call MPI_Type_commit(absolute, error)
      call MPI_Bcast(MPI_BOTTOM, 1, absolute, 1, copy, error)
      call check(all(wide(:long) == 1) .and. all(wide(long + 1:) == rank), 'Bcast at MPI_BOTTOM')
      call MPI_Type_free(absolute, error)
   end subroutine

   subroutine check(is, what)
      logical, intent(in) :: is
      character(*), intent(in) :: what
      integer :: ignored
      if (is) return
      print '(a, i0, 2a)', 'FAIL far_fortran rank ', rank, ': ', what
      call MPI_Abort(MPI_COMM_WORLD, 1, ignored)
   end subroutine
end program

#ifndef USE_MPI_F08
subroutine take_left(from, to, count, type)
   implicit none
   integer, intent(in) :: count, type ! the one here is MPI_INTEGER
   integer, intent(in) :: from(count)
   integer, intent(inout) :: to(count)
   to = from
end subroutine
#endif
