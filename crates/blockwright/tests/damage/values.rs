//! The values that damage gives to a field.

use super::lab::Rng;

/// A value, in terms of the one that is there.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Zero,
    Ones,
    More,
    Less,
    /// One bit is turned.
    Bit(u64),
    /// This one.
    Is(u64),
    /// The field's and its neighbour's are exchanged.
    Neighbour,
}

impl Value {
    /// One by chance, for a field of `len` bytes. `small` is below how much numbers of such a volume are.
    pub fn draw(len: usize, small: u64, rng: &mut Rng) -> Self {
        match rng.below(8) {
            0 => Value::Zero,
            1 => Value::Ones,
            2 => Value::More,
            3 => Value::Less,
            4 => Value::Bit(rng.below(len as u64 * 8)),
            5 => Value::Is(rng.next()),
            6 => Value::Is(rng.below(small)),
            _ => Value::Neighbour,
        }
    }

    /// The eight that every field is given in turn. `large` is a number that a field of this length could hold.
    pub fn all(len: usize, large: u64, rng: &mut Rng) -> [Self; 8] {
        [
            Value::Zero,
            Value::Ones,
            Value::More,
            Value::Less,
            Value::Bit(len as u64 * 8 - 1),
            Value::Is(rng.next()),
            Value::Neighbour,
            Value::Is(large),
        ]
    }

    /// What becomes of `old`. `None`: the neighbour's.
    pub fn of(self, old: u64) -> Option<u64> {
        Some(match self {
            Value::Zero => 0,
            Value::Ones => u64::MAX,
            Value::More => old.wrapping_add(1),
            Value::Less => old.wrapping_sub(1),
            Value::Bit(n) => old ^ 1 << n,
            Value::Is(value) => value,
            Value::Neighbour => return None,
        })
    }
}
