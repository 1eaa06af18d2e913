use crate::{reading::Reading, samples::Samples};

/// What one run measured in all rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    medians: Samples,
    /// Of latencies; rates are as good as means.
    means: Samples,
    too_long: bool,
    failed: bool,
}

impl Results {
    /// Adds a round's reading, or that it failed.
    pub(crate) fn add(&mut self, reading: Option<Reading>) {
        match reading {
            Some(Reading::Latency { median, mean }) => {
                if let Some(median) = median {
                    self.medians.push(median);
                }
                self.means.push(mean);
            }
            Some(Reading::Rate(rate)) => self.means.push(rate),
            Some(Reading::TooLong) => self.too_long = true,
            None => self.failed = true,
        }
    }

    /// The figures by which two are compared: medians where both tell them.
    pub(crate) fn common<'a>(&'a self, other: &'a Self) -> (&'a Samples, &'a Samples) {
        if self.medians.median().is_some() && other.medians.median().is_some() {
            (&self.medians, &other.medians)
        } else {
            (&self.means, &other.means)
        }
    }

    pub(crate) fn is_too_long(&self) -> bool {
        self.too_long
    }

    /// Whether another round would be of no use.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.too_long || self.failed
    }

    /// Whether there is a figure of each round, as far as there can be.
    pub(crate) fn is_complete(&self) -> bool {
        !self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(median: Option<f64>, mean: f64) -> Results {
        let mut results = Results::default();
        results.add(Some(Reading::Latency { median, mean }));
        results
    }

    #[test]
    fn medians_are_compared_with_medians_and_means_with_means() {
        let ours = results(Some(2.0), 3.0);
        let told = results(Some(4.0), 5.0);
        let untold = results(None, 6.0);
        let pair = |(a, b): (&Samples, &Samples)| (a.median(), b.median());
        assert_eq!(pair(told.common(&ours)), (Some(4.0), Some(2.0)));
        assert_eq!(pair(untold.common(&ours)), (Some(6.0), Some(3.0)));
    }

    #[test]
    fn a_failure_is_not_complete_and_too_long_is() {
        let mut results = Results::default();
        results.add(Some(Reading::TooLong));
        assert!(results.is_hopeless() && results.is_complete());
        results.add(None);
        assert!(!results.is_complete());
    }
}
