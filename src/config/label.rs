use std::{fmt, sync::Arc};

use crate::error::Error;

/// The maximum length of a label in bytes.
const LONGEST: usize = 64;

/// The name that the program has given to a connection, or none.
///
/// The text may contain any characters. `Display` escapes the characters that could forge log
/// lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label(Option<Arc<str>>);

impl Label {
    /// Creates a label from this text. An empty text means no label.
    pub(crate) fn new(text: &str) -> Self {
        Self((!text.is_empty()).then(|| text.into()))
    }

    /// Checks that the text is not too long.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] above [`LONGEST`] bytes. The error contains the length, not the
    /// text.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.as_str() {
            Some(text) if text.len() > LONGEST => Err(Error::InvalidConfig {
                field: "label",
                value: format!("{} bytes long", text.len()),
                allowed: format!("0 to {LONGEST} bytes"),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the text as the program set it, without escapes.
    pub(crate) fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Returns a copy of the text.
    pub(crate) fn to_text(&self) -> Option<String> {
        self.as_str().map(str::to_owned)
    }
}

impl fmt::Display for Label {
    /// Writes a space and the text in quotation marks, or nothing if there is no label. Quotation
    /// marks, backslashes and control characters of the text are escaped, so that a label cannot
    /// forge log lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_str() {
            Some(text) => write!(f, " {text:?}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_quoted_and_escaped() {
        assert_eq!(Label::new("orders").to_string(), r#" "orders""#);
        assert_eq!(Label::new("").to_string(), "");
        let hostile = Label::new("a\"b\\c\nd\x1b[2J");
        assert_eq!(hostile.to_string(), r#" "a\"b\\c\nd\u{1b}[2J""#);
    }

    #[test]
    fn label_above_64_bytes_is_refused() {
        Label::new(&"x".repeat(64)).check().unwrap();
        let error = Label::new(&"é".repeat(33)).check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid configuration: label is 66 bytes long, allowed is 0 to 64 bytes"
        );
    }
}
