/// What the rounds measured, from the smallest on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

/// How often an interval may miss the median that many more rounds would show.
const DOUBT: f64 = 0.05;

impl Samples {
    pub(crate) fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The value in the middle; of an even number, the mean of the two there. `None` when nothing
    /// was measured.
    pub(crate) fn median(&self) -> Option<f64> {
        let middle = self.0.len() / 2;
        let upper = *self.0.get(middle)?;
        if self.0.len().is_multiple_of(2) {
            Some((self.0[middle - 1] + upper) / 2.0)
        } else {
            Some(upper)
        }
    }

    /// Where the median is with 95 % confidence, whatever the distribution: without as many of the
    /// smallest and of the largest values as that allows. Of fewer than six, it is their spread.
    pub(crate) fn interval(&self) -> Option<(f64, f64)> {
        let n = self.0.len();
        // How likely exactly `out` of n values are below the median, and how likely at most.
        let mut exactly = 0.5_f64.powi(i32::try_from(n).ok()?);
        let mut at_most = exactly;
        let mut out = 0;
        loop {
            exactly *= (n.checked_sub(out)?) as f64 / (out + 1) as f64;
            at_most += exactly;
            if 2.0 * at_most > DOUBT {
                break;
            }
            out += 1;
        }
        Some((*self.0.get(out)?, *self.0.get(n - 1 - out)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_interval_do_not_depend_on_the_order() {
        let samples = |values: &[f64]| Samples::new(values.iter().copied());
        assert_eq!(samples(&[]).median(), None);
        assert_eq!(samples(&[]).interval(), None);
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(samples(&[4.0, 1.0, 2.0]).interval(), Some((1.0, 4.0)));
        assert_eq!(samples(&[1.0]).interval(), Some((1.0, 1.0)));
    }

    #[test]
    fn many_rounds_have_outliers_that_do_not_count() {
        // As in the tables for the sign test.
        for (n, out) in [(5, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5)] {
            let samples = Samples::new((0..n).map(f64::from));
            let expected = (f64::from(out), f64::from(n - 1 - out));
            assert_eq!(samples.interval(), Some(expected), "{n}");
        }
    }
}
