//! The atomic operations that exist for each type.

use isthmus_io::Endpoint;
use isthmus_proto::{AtomicKind, AtomicOp, AtomicType};

use crate::abi::{fi_datatype, fi_op};
use crate::error::Error;

/// libfabric's type, if we have it: the engine's numbers are libfabric's.
pub(crate) fn type_of(datatype: fi_datatype) -> Result<AtomicType, Error> {
    u8::try_from(datatype).ok().and_then(AtomicType::from_code).ok_or(UNSUPPORTED)
}

/// libfabric's operation, if we have it.
pub(crate) fn op_of(op: fi_op) -> Result<AtomicOp, Error> {
    u8::try_from(op).ok().and_then(AtomicOp::from_code).ok_or(UNSUPPORTED)
}

const UNSUPPORTED: Error = Error::NotOffered("this atomic operation on this type");

/// Most elements of one call, if the call takes this operation on this type.
pub(crate) fn count_max(kind: AtomicKind, op: AtomicOp, datatype: AtomicType) -> Result<usize, Error> {
    if is_of_kind(op, kind) && op.supports(datatype) {
        Ok(Endpoint::ATOMIC_MAX / datatype.size())
    } else {
        Err(UNSUPPORTED)
    }
}

fn is_of_kind(op: AtomicOp, kind: AtomicKind) -> bool {
    match kind {
        AtomicKind::Compare => op.compares(),
        AtomicKind::Fetch => !op.compares(),
        AtomicKind::Update => !op.compares() && op != AtomicOp::AtomicRead,
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
