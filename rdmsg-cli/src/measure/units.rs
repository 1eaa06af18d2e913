use std::{fmt, str::FromStr};

/// A number of bytes, written as `64`, `4K` or `1M`. The units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

const UNITS: [(char, u64); 3] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];

/// The maximum message size in bytes.
const LONGEST: u64 = 1 << 30;

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = UNITS
            .iter()
            .find(|(letter, _)| text.to_uppercase().ends_with(*letter));
        let (number, unit) = match unit {
            Some((_, unit)) => (&text[..text.len() - 1], *unit),
            None => (text, 1),
        };
        let number: u64 = number
            .parse()
            .map_err(|_| "expected a number of bytes, such as 64, 4K or 1M")?;
        let bytes = number.checked_mul(unit).filter(|bytes| *bytes <= LONGEST);
        bytes
            .map(Self)
            .ok_or_else(|| "the size must be at most 1G".into())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let fits = |unit: u64| bytes >= unit && bytes.is_multiple_of(unit);
        match UNITS.iter().rev().find(|(_, unit)| fits(*unit)) {
            Some((letter, unit)) => f.pad(&format!("{}{letter}", bytes / unit)),
            None => f.pad(&bytes.to_string()),
        }
    }
}

/// Formats a number of microseconds with three digits and a suitable unit.
pub(crate) fn micros(micros: f64) -> String {
    match micros {
        micros if micros < 999.5 => format!("{} µs", digits(micros)),
        micros if micros < 999.5e3 => format!("{} ms", digits(micros / 1e3)),
        micros => format!("{} s", digits(micros / 1e6)),
    }
}

impl Size {
    /// Returns the size with its unit, for example `4 KiB`.
    pub(crate) fn with_unit(self) -> String {
        let text = self.to_string();
        match text.strip_suffix(|unit: char| unit.is_ascii_uppercase()) {
            Some(number) => format!("{number} {}iB", &text[number.len()..]),
            None => format!("{text} B"),
        }
    }
}

/// Formats a rate in bytes per second. The units are powers of 1024.
pub(crate) fn bytes_per_second(rate: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let mut number = rate;
    let mut unit = 0;
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1024.0;
        unit += 1;
    }
    // Print powers of 2 without decimals: 1 GiB/s, 512 MiB/s.
    let text = if number >= 1.0 && number.log2().fract() == 0.0 {
        format!("{number}")
    } else {
        digits(number)
    };
    format!("{text} {}/s", units[unit])
}

/// Formats a rate in messages per second. The units are powers of 1000.
pub(crate) fn per_second(rate: f64) -> String {
    format!("{}/s", scaled(rate))
}

fn scaled(number: f64) -> String {
    let (number, unit) = match number {
        number if number < 999.5 => (number, ""),
        number if number < 999.5e3 => (number / 1e3, "k"),
        number if number < 999.5e6 => (number / 1e6, "M"),
        number => (number / 1e9, "G"),
    };
    format!("{} {unit}", digits(number))
}

/// Formats a number below 1000 with three significant digits.
fn digits(number: f64) -> String {
    let decimals = match number {
        number if number < 9.995 => 2,
        number if number < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for text in ["0", "64", "1000", "4K", "1M", "1G", "6K"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("4k".parse(), Ok(Size(4096)));
        for text in [
            "",
            "K",
            "-1",
            "1.5K",
            "2G",
            "1T",
            "99999999999999999999",
            "ä",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        let written: Vec<String> = [0.5, 9.999, 12.34, 456.7, 1234.5, 12_345.0, 2e7]
            .into_iter()
            .map(micros)
            .collect();
        let expected = [
            "0.50 µs", "10.0 µs", "12.3 µs", "457 µs", "1.23 ms", "12.3 ms", "20.0 s",
        ];
        assert_eq!(written, expected);
        assert_eq!(bytes_per_second(1.234e9), "1.15 GiB/s");
        assert_eq!(bytes_per_second(1023.0 * 1024.0), "1.00 MiB/s");
        assert_eq!(bytes_per_second(1024.0 * 1024.0), "1 MiB/s");
        assert_eq!(bytes_per_second(12.0), "12.0 B/s");
        assert_eq!(Size(65_536).with_unit(), "64 KiB");
        assert_eq!(Size(1000).with_unit(), "1000 B");
        assert_eq!(per_second(999.9), "1.00 k/s");
        assert_eq!(per_second(12.0), "12.0 /s");
    }
}
