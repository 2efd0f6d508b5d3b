//! Which operations we have on which types.

use isthmus_io::Endpoint;
use isthmus_proto::{AtomicKind, AtomicOp, AtomicType};

use crate::abi::{fi_datatype, fi_op};
use crate::error::Error;

/// libfabric's type, if we have it.
pub(crate) fn type_of(datatype: fi_datatype) -> Result<AtomicType, Error> {
    use AtomicType::*;
    const TYPES: [AtomicType; 12] = [
        Int8,
        Uint8,
        Int16,
        Uint16,
        Int32,
        Uint32,
        Int64,
        Uint64,
        Float,
        Double,
        FloatComplex,
        DoubleComplex,
    ];
    TYPES.get(datatype as usize).copied().ok_or(UNSUPPORTED)
}

/// libfabric's operation, if we have it.
pub(crate) fn op_of(op: fi_op) -> Result<AtomicOp, Error> {
    use AtomicOp::*;
    const OPS: [AtomicOp; 19] = [
        Min,
        Max,
        Sum,
        Prod,
        Lor,
        Land,
        Bor,
        Band,
        Lxor,
        Bxor,
        AtomicRead,
        AtomicWrite,
        Cswap,
        CswapNe,
        CswapLe,
        CswapLt,
        CswapGe,
        CswapGt,
        Mswap,
    ];
    OPS.get(op as usize).copied().ok_or(UNSUPPORTED)
}

const UNSUPPORTED: Error = Error::NotOffered("this atomic operation on this type");

/// Size of an element. Bytes.
pub(crate) fn size_of_type(datatype: AtomicType) -> usize {
    use AtomicType::*;
    match datatype {
        Int8 | Uint8 => 1,
        Int16 | Uint16 => 2,
        Int32 | Uint32 | Float => 4,
        Int64 | Uint64 | Double | FloatComplex => 8,
        DoubleComplex => 16,
    }
}

/// Most elements of one call, if the call takes this operation on this type.
pub(crate) fn count_max(kind: AtomicKind, op: AtomicOp, datatype: AtomicType) -> Result<usize, Error> {
    if is_of_kind(op, kind) && is_on_type(op, datatype) {
        Ok(Endpoint::ATOMIC_MAX / size_of_type(datatype))
    } else {
        Err(UNSUPPORTED)
    }
}

fn is_of_kind(op: AtomicOp, kind: AtomicKind) -> bool {
    use AtomicOp::*;
    let compares = matches!(op, Cswap | CswapNe | CswapLe | CswapLt | CswapGe | CswapGt | Mswap);
    match kind {
        AtomicKind::Compare => compares,
        AtomicKind::Fetch => !compares,
        AtomicKind::Update => !compares && op != AtomicRead,
    }
}

fn is_on_type(op: AtomicOp, datatype: AtomicType) -> bool {
    use AtomicOp::*;
    use AtomicType::*;
    let complex = matches!(datatype, FloatComplex | DoubleComplex);
    let integer = !complex && !matches!(datatype, Float | Double);
    match op {
        Bor | Band | Bxor | Mswap => integer,
        Min | Max | CswapLe | CswapLt | CswapGe | CswapGt => !complex,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_takes_its_own_operations() {
        let on_int = |kind, op| count_max(kind, op, AtomicType::Int32).is_ok();
        assert!(on_int(AtomicKind::Update, AtomicOp::Sum));
        assert!(!on_int(AtomicKind::Update, AtomicOp::AtomicRead));
        assert!(on_int(AtomicKind::Fetch, AtomicOp::AtomicRead));
        assert!(!on_int(AtomicKind::Fetch, AtomicOp::Cswap));
        assert!(on_int(AtomicKind::Compare, AtomicOp::Mswap));
        assert!(!on_int(AtomicKind::Compare, AtomicOp::Sum));
    }

    #[test]
    fn types_limit_operations() {
        let with = |op, datatype| count_max(AtomicKind::Update, op, datatype);
        assert!(with(AtomicOp::Band, AtomicType::Double).is_err());
        assert!(with(AtomicOp::Min, AtomicType::FloatComplex).is_err());
        assert_eq!(with(AtomicOp::Sum, AtomicType::DoubleComplex).expect("valid"), Endpoint::ATOMIC_MAX / 16);
        assert!(type_of(12).is_err());
        assert_eq!(op_of(18).expect("valid"), AtomicOp::Mswap);
        assert!(op_of(19).is_err());
    }
}
