//! A number that can be changed while a volume is mounted: its name, unit, range and value.

use crate::stats::Unit;
use std::borrow::Cow;

/// A number that can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunable {
    /// Its name.
    pub name: Cow<'static, str>,
    /// The unit of its value.
    pub unit: Unit,
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
    /// The value.
    pub value: u64,
    /// What it does, in a sentence.
    pub help: Cow<'static, str>,
}

impl Tunable {
    /// A tunable of this range.
    #[must_use]
    pub fn new(
        name: &'static str,
        unit: Unit,
        range: std::ops::RangeInclusive<u64>,
        value: u64,
        help: &'static str,
    ) -> Self {
        Tunable {
            name: name.into(),
            unit,
            min: *range.start(),
            max: *range.end(),
            value,
            help: help.into(),
        }
    }

    /// A switch.
    #[must_use]
    pub fn switch(name: &'static str, value: bool, help: &'static str) -> Self {
        Self::new(name, Unit::Switch, 0..=1, u64::from(value), help)
    }
}

/// A list of [`Tunable`]s, one a row: name, [`Unit`], range, value, and what it does.
#[macro_export]
macro_rules! tunables {
    ($($name:literal, $unit:ident, $range:expr, $value:expr, $help:literal;)*) => {
        vec![$($crate::Tunable::new($name, $crate::Unit::$unit, $range, $value, $help)),*]
    };
}
