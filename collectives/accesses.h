// The functions of windows and one-sided accesses with counts, for one width of counts: windows.c includes it twice.
//   ENTRY(name)      MPI_name or MPI_name_c, STOCK(name) the MPI's own
//   COUNT, UNIT      the types of counts and of displacement units
ACCESS(ENTRY(Put), STOCK(Put),
       (const void *from, COUNT count, MPI_Datatype type, int target, MPI_Aint place, COUNT target_count, MPI_Datatype target_type, MPI_Win win),
       (from, count, type, target, place, target_count, target_type, win),
       CALL_PUT, .from = from, COUNTS(count, 0, target_count), DATATYPES(type, MPI_DATATYPE_NULL, target_type), AT)
ACCESS(ENTRY(Get), STOCK(Get),
       (void *result, COUNT count, MPI_Datatype type, int target, MPI_Aint place, COUNT target_count, MPI_Datatype target_type, MPI_Win win),
       (result, count, type, target, place, target_count, target_type, win),
       CALL_GET, .result = result, COUNTS(0, count, target_count), DATATYPES(MPI_DATATYPE_NULL, type, target_type), AT)
ACCESS(ENTRY(Accumulate), STOCK(Accumulate),
       (const void *from, COUNT count, MPI_Datatype type, int target, MPI_Aint place, COUNT target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win win),
       (from, count, type, target, place, target_count, target_type, op, win),
       CALL_ACCUMULATE, .from = from, COUNTS(count, 0, target_count), DATATYPES(type, MPI_DATATYPE_NULL, target_type), AT, .op = op)
ACCESS(ENTRY(Get_accumulate), STOCK(Get_accumulate),
       (const void *from, COUNT count, MPI_Datatype type, void *result, COUNT result_count, MPI_Datatype result_type, int target, MPI_Aint place,
        COUNT target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win win),
       (from, count, type, result, result_count, result_type, target, place, target_count, target_type, op, win),
       CALL_GET_ACCUMULATE, .from = from, .result = result, COUNTS(count, result_count, target_count), DATATYPES(type, result_type, target_type), AT, .op = op)

int ENTRY(Win_create)(void *base, MPI_Aint size, UNIT unit, MPI_Info info, MPI_Comm comm, MPI_Win *win)
{
    int error = STOCK(Win_create)(base, size, unit, info, comm, win);
    if (error == MPI_SUCCESS)
        watch(comm, base, size, unit, *win);
    return error;
}

int ENTRY(Win_allocate)(MPI_Aint size, UNIT unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win)
{
    int error = STOCK(Win_allocate)(size, unit, info, comm, base, win);
    if (error == MPI_SUCCESS)
        watch(comm, *(void **)base, size, unit, *win);
    return error;
}
