/// What the rounds measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        let at = self.0.partition_point(|other| *other < value);
        self.0.insert(at, value);
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

    /// The smallest and the largest.
    pub(crate) fn spread(&self) -> Option<(f64, f64)> {
        Some((*self.0.first()?, *self.0.last()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        for value in values {
            samples.push(*value);
        }
        samples
    }

    #[test]
    fn median_and_spread_do_not_depend_on_the_order() {
        assert_eq!(samples(&[]).median(), None);
        assert_eq!(samples(&[]).spread(), None);
        assert_eq!(samples(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(samples(&[4.0, 1.0, 2.0]).spread(), Some((1.0, 4.0)));
    }
}
