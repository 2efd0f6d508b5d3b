//! The arithmetic of atomic operations (`fi_atomic(3)`), on little-endian bytes.

use crate::{AtomicOp, AtomicType};

impl AtomicType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float,
        Self::Double,
        Self::FloatComplex,
        Self::DoubleComplex,
    ];

    /// The type with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Size of one element. Bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double | Self::FloatComplex => 8,
            Self::DoubleComplex => 16,
        }
    }
}

impl AtomicOp {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 19] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::AtomicRead,
        Self::AtomicWrite,
        Self::Cswap,
        Self::CswapNe,
        Self::CswapLe,
        Self::CswapLt,
        Self::CswapGe,
        Self::CswapGt,
        Self::Mswap,
    ];

    /// The operation with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether the operation takes a compare operand.
    pub fn compares(self) -> bool {
        self as u8 >= Self::Cswap as u8
    }

    /// Whether this operation exists for this type.
    pub fn supports(self, datatype: AtomicType) -> bool {
        use AtomicOp as Op;
        let complex = matches!(datatype, AtomicType::FloatComplex | AtomicType::DoubleComplex);
        let integer = datatype as u8 <= AtomicType::Uint64 as u8;
        match self {
            Op::Bor | Op::Band | Op::Bxor | Op::Mswap => integer,
            Op::Min | Op::Max | Op::CswapLe | Op::CswapLt | Op::CswapGe | Op::CswapGt => !complex,
            _ => true,
        }
    }
}

/// One element type's arithmetic.
trait Element: Copy + PartialEq {
    fn get(bytes: &[u8]) -> Self;
    fn put(self, bytes: &mut [u8]);
    fn apply(op: AtomicOp, old: Self, new: Self, compare: Self) -> Self;
}

fn logical(op: AtomicOp, old: bool, new: bool) -> bool {
    match op {
        AtomicOp::Lor => old || new,
        AtomicOp::Land => old && new,
        _ => old != new,
    }
}

macro_rules! common_ops {
    ($op:ident, $old:ident, $new:ident, $compare:ident, $zero:expr, $one:expr, $other:expr) => {
        match $op {
            AtomicOp::AtomicRead => $old,
            AtomicOp::AtomicWrite => $new,
            AtomicOp::Lor | AtomicOp::Land | AtomicOp::Lxor => {
                if logical($op, $old != $zero, $new != $zero) {
                    $one
                } else {
                    $zero
                }
            }
            AtomicOp::Cswap if $compare == $old => $new,
            AtomicOp::CswapNe if $compare != $old => $new,
            _ => $other,
        }
    };
}

macro_rules! ordered_ops {
    ($op:ident, $old:ident, $new:ident, $compare:ident, $other:expr) => {
        match $op {
            AtomicOp::Min => {
                if $new < $old {
                    $new
                } else {
                    $old
                }
            }
            AtomicOp::Max => {
                if $new > $old {
                    $new
                } else {
                    $old
                }
            }
            AtomicOp::CswapLe if $compare <= $old => $new,
            AtomicOp::CswapLt if $compare < $old => $new,
            AtomicOp::CswapGe if $compare >= $old => $new,
            AtomicOp::CswapGt if $compare > $old => $new,
            _ => $other,
        }
    };
}

macro_rules! bytes_of_element {
    ($kind:ty) => {
        fn get(bytes: &[u8]) -> Self {
            let mut raw = [0; size_of::<$kind>()];
            raw.copy_from_slice(bytes);
            Self::from_le_bytes(raw)
        }
        fn put(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_le_bytes());
        }
    };
}

macro_rules! integer_element {
    ($($kind:ty),*) => {$(
        impl Element for $kind {
            bytes_of_element!($kind);
            fn apply(op: AtomicOp, old: Self, new: Self, compare: Self) -> Self {
                common_ops!(op, old, new, compare, 0, 1, match op {
                    AtomicOp::Sum => old.wrapping_add(new),
                    AtomicOp::Prod => old.wrapping_mul(new),
                    AtomicOp::Bor => old | new,
                    AtomicOp::Band => old & new,
                    AtomicOp::Bxor => old ^ new,
                    AtomicOp::Mswap => (new & compare) | (old & !compare),
                    _ => ordered_ops!(op, old, new, compare, old),
                })
            }
        }
    )*};
}

macro_rules! float_element {
    ($($kind:ty),*) => {$(
        impl Element for $kind {
            bytes_of_element!($kind);
            fn apply(op: AtomicOp, old: Self, new: Self, compare: Self) -> Self {
                common_ops!(op, old, new, compare, 0.0, 1.0, match op {
                    AtomicOp::Sum => old + new,
                    AtomicOp::Prod => old * new,
                    _ => ordered_ops!(op, old, new, compare, old),
                })
            }
        }
    )*};
}

integer_element!(i8, u8, i16, u16, i32, u32, i64, u64);
float_element!(f32, f64);

#[derive(Clone, Copy, PartialEq)]
struct Complex<T>(T, T);

macro_rules! complex_element {
    ($($kind:ty),*) => {$(
        impl Element for Complex<$kind> {
            fn get(bytes: &[u8]) -> Self {
                let (re, im) = bytes.split_at(size_of::<$kind>());
                Self(<$kind>::get(re), <$kind>::get(im))
            }
            fn put(self, bytes: &mut [u8]) {
                let (re, im) = bytes.split_at_mut(size_of::<$kind>());
                self.0.put(re);
                self.1.put(im);
            }
            fn apply(op: AtomicOp, old: Self, new: Self, compare: Self) -> Self {
                common_ops!(op, old, new, compare, Complex(0.0, 0.0), Complex(1.0, 0.0), match op {
                    AtomicOp::Sum => Self(old.0 + new.0, old.1 + new.1),
                    AtomicOp::Prod => Self(old.0 * new.0 - old.1 * new.1, old.0 * new.1 + old.1 * new.0),
                    _ => old,
                })
            }
        }
    )*};
}

complex_element!(f32, f64);

fn apply_all<T: Element>(op: AtomicOp, target: &mut [u8], operand: &[u8], compare: &[u8]) {
    let size = size_of::<T>();
    for (i, element) in target.chunks_exact_mut(size).enumerate() {
        let old = T::get(element);
        let pick = |from: &[u8]| from.get(i * size..(i + 1) * size).map_or(old, T::get);
        T::apply(op, old, pick(operand), pick(compare)).put(element);
    }
}

/// Applies `op` to every element of `target`. `operand` is empty for atomic reads, `compare` for operations that do
/// not compare.
pub fn apply(op: AtomicOp, datatype: AtomicType, target: &mut [u8], operand: &[u8], compare: &[u8]) {
    let run = match datatype {
        AtomicType::Int8 => apply_all::<i8>,
        AtomicType::Uint8 => apply_all::<u8>,
        AtomicType::Int16 => apply_all::<i16>,
        AtomicType::Uint16 => apply_all::<u16>,
        AtomicType::Int32 => apply_all::<i32>,
        AtomicType::Uint32 => apply_all::<u32>,
        AtomicType::Int64 => apply_all::<i64>,
        AtomicType::Uint64 => apply_all::<u64>,
        AtomicType::Float => apply_all::<f32>,
        AtomicType::Double => apply_all::<f64>,
        AtomicType::FloatComplex => apply_all::<Complex<f32>>,
        AtomicType::DoubleComplex => apply_all::<Complex<f64>>,
    };
    run(op, target, operand, compare);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_i32(op: AtomicOp, old: i32, new: i32, compare: i32) -> i32 {
        let mut target = old.to_le_bytes();
        apply(op, AtomicType::Int32, &mut target, &new.to_le_bytes(), &compare.to_le_bytes());
        i32::from_le_bytes(target)
    }

    #[test]
    fn integers_follow_the_manual() {
        let cases = [
            (AtomicOp::Min, 5, -3, 0, -3),
            (AtomicOp::Max, 5, -3, 0, 5),
            (AtomicOp::Sum, i32::MAX, 1, 0, i32::MIN),
            (AtomicOp::Prod, 6, 7, 0, 42),
            (AtomicOp::Lor, 0, 9, 0, 1),
            (AtomicOp::Land, 4, 0, 0, 0),
            (AtomicOp::Lxor, 4, 9, 0, 0),
            (AtomicOp::Bor, 4, 1, 0, 5),
            (AtomicOp::Band, 6, 3, 0, 2),
            (AtomicOp::Bxor, 6, 3, 0, 5),
            (AtomicOp::AtomicRead, 6, 3, 0, 6),
            (AtomicOp::AtomicWrite, 6, 3, 0, 3),
            (AtomicOp::Cswap, 6, 3, 6, 3),
            (AtomicOp::Cswap, 6, 3, 5, 6),
            (AtomicOp::CswapNe, 6, 3, 5, 3),
            (AtomicOp::CswapLe, 6, 3, 6, 3),
            (AtomicOp::CswapLt, 6, 3, 6, 6),
            (AtomicOp::CswapGe, 6, 3, 7, 3),
            (AtomicOp::CswapGt, 6, 3, 6, 6),
            (AtomicOp::Mswap, 0b1100, 0b0011, 0b0110, 0b1010),
        ];
        for (op, old, new, compare, expected) in cases {
            assert_eq!(on_i32(op, old, new, compare), expected, "{op:?}");
        }
    }

    #[test]
    fn complex_numbers_multiply() {
        let bytes = |re: f64, im: f64| [re.to_le_bytes(), im.to_le_bytes()].concat();
        let mut target = bytes(1.0, 2.0);
        apply(AtomicOp::Prod, AtomicType::DoubleComplex, &mut target, &bytes(3.0, 4.0), &[]);
        assert_eq!(target, bytes(-5.0, 10.0));
    }

    #[test]
    fn numbers_name_the_same_operations_on_both_sides() {
        for (code, op) in AtomicOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, code);
            assert_eq!(AtomicOp::from_code(code as u8), Some(op));
        }
        for (code, datatype) in AtomicType::ALL.into_iter().enumerate() {
            assert_eq!(datatype as usize, code);
            assert_eq!(AtomicType::from_code(code as u8), Some(datatype));
        }
        assert!(!AtomicOp::Bor.supports(AtomicType::Double));
        assert!(AtomicOp::Cswap.supports(AtomicType::DoubleComplex));
    }
}
