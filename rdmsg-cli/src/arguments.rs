//! Arguments that several commands share: transports and durations.

use std::time::Duration;

use clap::ValueEnum;
use rdmsg::TransportChoice;

/// The transport that the command line selects for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Carrier {
    /// RDMA if a device serves the address, and TCP otherwise
    Auto,
    Rdma,
    Tcp,
}

impl Carrier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
        }
    }
}

impl From<Carrier> for TransportChoice {
    fn from(carrier: Carrier) -> Self {
        match carrier {
            Carrier::Auto => Self::Auto,
            Carrier::Rdma => Self::Rdma,
            Carrier::Tcp => Self::Tcp,
        }
    }
}

/// Parses a number of seconds, such as `0.5` or `30s`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let number: f64 = number.parse().map_err(|_| "expected seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// Parses the time for which a lost connection can be resumed. Accepts the range of
/// `Config::resume`.
pub(crate) fn resume(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    if duration > Duration::from_secs(3600) {
        return Err("the time must be at most 3600 seconds".into());
    }
    Ok(duration)
}

/// Parses a number of seconds that is above 0 and at most 86400, which is one day.
pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    if duration.is_zero() {
        return Err("the time must be more than 0 seconds".into());
    }
    if duration > Duration::from_secs(86_400) {
        return Err("the time must be at most 86400 seconds".into());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_durations_are_accepted() {
        for text in ["0.5", "0.5s"] {
            assert_eq!(positive(text), Ok(Duration::from_millis(500)));
        }
        for text in [
            "", "s", "0", "-1", "nan", "inf", "1e30", "86401", "1 s", "1ms",
        ] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert_eq!(resume("0"), Ok(Duration::ZERO));
        assert_eq!(resume("3600s"), Ok(Duration::from_secs(3600)));
        assert!(resume("3601").is_err());
    }
}
