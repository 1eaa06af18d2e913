use crate::{reading::Reading, samples::Samples};

/// What one run measured in all rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    medians: Samples,
    /// Of latencies; rates are as good as means.
    means: Samples,
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

    /// Whether a round gave no figure.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
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
    fn one_failure_is_remembered() {
        let mut results = Results::default();
        results.add(None);
        results.add(Some(Reading::Rate(1.0)));
        assert!(results.has_failed());
    }
}
