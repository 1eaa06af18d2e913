//! Durations on the command line.

use std::time::Duration;

/// Some seconds, more than none.
pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "expected seconds".to_owned())?;
    let duration = Duration::try_from_secs_f64(number).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("it is 0".into());
    }
    if duration > Duration::from_secs(86_400) {
        return Err("it is more than a day".into());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_that_can_be_waited_for_are_taken() {
        assert_eq!(positive("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "nan", "inf", "1e30", "86401", "1 s"] {
            assert!(positive(text).is_err(), "{text}");
        }
    }
}
