//! A file of a suite in the generated crate, without the items that do not compile.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::Result;

/// A generated file.
#[derive(Debug)]
pub(crate) struct File {
    /// The path below the generated crate.
    pub(crate) path: PathBuf,
    lines: Vec<String>,
    items: Vec<Item>,
}

/// A function, macro or type at the top of a file, with its attributes.
#[derive(Debug)]
struct Item {
    lines: Range<usize>,
    /// The compiler's error, if the item does not compile.
    error: Option<String>,
}

impl File {
    pub(crate) fn new(path: PathBuf, text: &str) -> Self {
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        let items = items(&lines);
        Self { path, lines, items }
    }

    /// Whether its program uses rdmsg.
    pub(crate) fn is_with_rdmsg(&self) -> bool {
        let mut parts = self.path.iter();
        parts.any(|part| part.to_string_lossy().ends_with("_rdmsg"))
    }

    /// Leaves out the item that has this line, counted from 1. Returns whether it was there.
    pub(crate) fn leave_out(&mut self, line: usize, error: &str) -> bool {
        let mut items = self.items.iter_mut();
        let item = items.find(|item| item.lines.contains(&(line - 1)) && item.error.is_none());
        item.is_some_and(|item| item.error.replace(error.to_owned()).is_none())
    }

    /// Returns the error of the item that was left out and that defines this function or macro, or
    /// has a line for it as the argument of a macro.
    pub(crate) fn error_of(&self, name: &str) -> Option<&str> {
        let definitions = [format!("fn {name}("), format!("macro_rules! {name} ")];
        let argument = format!("({name}, ");
        let defines = |line: &String| {
            definitions
                .iter()
                .any(|definition| line.contains(definition))
                || line.trim_start().starts_with(&argument)
        };
        let mut items = self.items.iter().filter(|item| item.error.is_some());
        let item = items.find(|item| self.lines[item.lines.clone()].iter().any(defines))?;
        item.error.as_deref()
    }

    /// Writes the file, unless it is there with this content.
    pub(crate) fn write(&self, folder: &Path) -> Result<bool> {
        let mut lines = self.lines.clone();
        for item in self.items.iter().filter(|item| item.error.is_some()) {
            lines[item.lines.start].insert_str(0, "#[cfg(any())] ");
        }
        write(&folder.join(&self.path), &(lines.join("\n") + "\n"))
    }
}

/// Writes a file, unless it has this content: cargo finds it unchanged then. Returns whether it
/// had another.
pub(crate) fn write(path: &Path, text: &str) -> Result<bool> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(false);
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, text)?;
    Ok(true)
}

/// Finds the items of a file that rustfmt has formatted: lines inside of an item are indented.
fn items(lines: &[String]) -> Vec<Item> {
    let mut items = Vec::new();
    let mut start = None;
    for (at, line) in lines.iter().enumerate() {
        if line.is_empty()
            || [" ", "// ", "#!["]
                .iter()
                .any(|start| line.starts_with(start))
        {
            continue;
        }
        let begin = *start.get_or_insert(at);
        if line.starts_with('}') || line.ends_with([';', '}']) {
            let (lines, error) = (begin..at + 1, None);
            items.push(Item { lines, error });
            start = None;
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
#![warn(unused)]

use std::io;

// A comment.
#[test]
fn first() {
    second();
}

test_accept! {
    (third, 0),
}
";

    #[test]
    fn leaves_out_whole_items() {
        let mut file = File::new("file.rs".into(), TEXT);
        assert!(file.leave_out(8, "no"));
        assert!(!file.leave_out(7, "another"));
        assert!(file.leave_out(12, "neither"));
        assert!(!file.leave_out(5, "a comment"));
        assert_eq!(file.error_of("first"), Some("no"));
        assert_eq!(file.error_of("third"), Some("neither"));
        assert_eq!(file.error_of("fir"), None);
        assert_eq!(file.error_of("second"), None);
    }
}
