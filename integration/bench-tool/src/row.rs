use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    measure::{Measure, bytes},
    part::Part,
    samples::Samples,
    target::Target,
};

/// A line of the table: what was measured of ours, mostly beside something else.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) part: Part,
    pub(crate) hosts: u8,
    pub(crate) measure: Measure,
    /// Bytes of a message; 0 where there is none.
    pub(crate) size: usize,
    pub(crate) ours: Side,
    /// What ours is compared with, which may be ours in another way.
    pub(crate) theirs: Option<Side>,
    pub(crate) target: Target,
}

/// One of the two that are compared.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Side {
    pub(crate) name: String,
    /// Of each round, in turn.
    pub(crate) figures: Vec<f64>,
}

/// What came of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is none.
    Untold,
    Met,
    Missed,
    /// The rounds differ by more than what separates them from the target.
    Undecided,
    NotMeasured,
}

impl Row {
    /// What it is called where it stands alone.
    pub(crate) fn name(&self) -> String {
        let mut name = format!("{}", self.measure);
        if self.size > 0 {
            name += &format!(", {}", bytes(self.size));
        }
        name += &format!(": {}", self.ours.name);
        if let Some(theirs) = &self.theirs {
            name += &format!(" / {}", theirs.name);
        }
        name
    }

    /// What is judged: of each round the ratio of ours to theirs, which ran one after the other, or
    /// the figure where there is nothing beside it.
    pub(crate) fn values(&self) -> Samples {
        match &self.theirs {
            Some(theirs) => {
                let pairs = self.ours.figures.iter().zip(&theirs.figures);
                Samples::new(pairs.map(|(ours, theirs)| ours / theirs))
            }
            None => Samples::new(self.ours.figures.iter().copied()),
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let Some((low, high)) = self.values().interval() else {
            return Verdict::NotMeasured;
        };
        match (self.target.met_by(low), self.target.met_by(high)) {
            (Some(true), Some(true)) => Verdict::Met,
            (Some(false), Some(false)) => Verdict::Missed,
            (Some(_), Some(_)) => Verdict::Undecided,
            (None, _) | (_, None) => Verdict::Untold,
        }
    }
}

impl Side {
    /// Whether it is this library, used in one way or another.
    pub(crate) fn is_ours(&self) -> bool {
        self.name.starts_with("rdmsg")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untold => "",
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Undecided => "undecided",
            Self::NotMeasured => "NOT MEASURED",
        })
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A row of half round trips.
    pub(crate) fn row(ours: &[f64], theirs: &[f64], target: Target) -> Row {
        let side = |name: &str, figures: &[f64]| Side {
            name: name.to_owned(),
            figures: figures.to_vec(),
        };
        Row {
            part: Part::Clock,
            hosts: 1,
            measure: Measure::HalfRoundTrip,
            size: 64,
            ours: side("rdmsg busy", ours),
            theirs: Some(side("ib_send_lat -R", theirs)),
            target,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::row, *};

    #[test]
    fn a_ratio_is_of_what_ran_in_the_same_round() {
        // The machine was twice as slow in the second round.
        let row = row(&[9.0, 18.0, 9.0], &[10.0, 20.0, 10.0], Target::AtMost(0.9));
        assert_eq!(row.values().interval(), Some((0.9, 0.9)));
        assert_eq!(row.verdict(), Verdict::Met);
        assert_eq!(
            row.name(),
            "half round trip, 64 B: rdmsg busy / ib_send_lat -R"
        );
    }

    #[test]
    fn what_is_within_the_spread_is_not_decided() {
        let verdict = |ours: &[f64]| row(ours, &[10.0; 3], Target::AtMost(0.9)).verdict();
        assert_eq!(verdict(&[8.0, 8.5, 8.9]), Verdict::Met);
        assert_eq!(verdict(&[8.0, 8.5, 9.5]), Verdict::Undecided);
        assert_eq!(verdict(&[9.1, 9.5, 9.2]), Verdict::Missed);
        assert_eq!(verdict(&[]), Verdict::NotMeasured);
        let untold = row(&[1.0], &[1.0], Target::None);
        assert_eq!(untold.verdict(), Verdict::Untold);
    }

    #[test]
    fn a_figure_with_nothing_beside_it_is_judged_itself() {
        let mut row = row(&[150.0], &[], Target::AtMost(200.0));
        row.theirs = None;
        assert_eq!(row.verdict(), Verdict::Met);
    }
}
