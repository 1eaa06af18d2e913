use std::fmt;

/// A field of a received frame that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    field: &'static str,
    value: u64,
    expected: &'static str,
}

impl Violation {
    /// Names the field, its value, and the values that the protocol allows.
    pub const fn new(field: &'static str, value: u64, expected: &'static str) -> Self {
        Self {
            field,
            value,
            expected,
        }
    }

    /// Returns the field's name.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the value that it had.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.value
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}, expected {}",
            self.field, self.value, self.expected
        )
    }
}
