use std::fmt;

use serde::{Deserialize, Serialize};

/// What a ratio ours/theirs, or a figure that has nothing beside it, should be.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    /// There is none: it is shown, that is all.
    None,
    AtMost(f64),
    AtLeast(f64),
    Below(f64),
    Above(f64),
}

impl Target {
    /// `None` when there is no target.
    pub(crate) fn met_by(self, value: f64) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtMost(limit) => Some(value <= limit),
            Self::AtLeast(limit) => Some(value >= limit),
            Self::Below(limit) => Some(value < limit),
            Self::Above(limit) => Some(value > limit),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
            Self::Below(limit) => write!(f, "< {limit}"),
            Self::Above(limit) => write!(f, "> {limit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_itself_meets_only_the_targets_that_include_it() {
        assert_eq!(Target::AtMost(1.15).met_by(1.15), Some(true));
        assert_eq!(Target::AtMost(1.15).met_by(1.16), Some(false));
        assert_eq!(Target::AtLeast(0.8).met_by(0.8), Some(true));
        assert_eq!(Target::AtLeast(0.8).met_by(0.79), Some(false));
        assert_eq!(Target::Below(1.0).met_by(1.0), Some(false));
        assert_eq!(Target::Above(1.0).met_by(1.0), Some(false));
        assert_eq!(Target::None.met_by(1.0), None);
    }
}
