use std::fmt;

/// The reason why one of two connected bridges aborts a connection. The aborting bridge sends the
/// reason as the abort code of the rdmsg stream, and the other bridge logs the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The bridge cannot connect to its target.
    Target,
    /// The maximum number of connections is already open.
    Limit,
    /// The plain end failed.
    Plain,
    /// The bridge itself is ending.
    Ending,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Target, Self::Limit, Self::Plain, Self::Ending];

    pub(super) fn code(self) -> u32 {
        match self {
            Self::Target => 1,
            Self::Limit => 2,
            Self::Plain => 3,
            Self::Ending => 4,
        }
    }

    pub(super) fn of_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.code() == code)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Target => "it cannot connect to its target (see its log)",
            Self::Limit => "it has reached its limit --max-connections",
            Self::Plain => "the connection on its side was reset or failed",
            Self::Ending => "it was stopped",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_other_programs_have_no_cause() {
        for cause in Cause::ALL {
            assert_eq!(Cause::of_code(cause.code()), Some(cause));
        }
        for code in [0, 5, 9, 257, 1 << 31 | 1, u32::MAX] {
            assert_eq!(Cause::of_code(code), None, "{code}");
        }
    }
}
