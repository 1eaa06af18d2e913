//! A file of a suite as the generated crate has it, without the items that do not compile.

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

    /// Leaves the item with this line (from 1) out. Returns whether it was there before.
    pub(crate) fn leave_out(&mut self, line: usize, error: &str) -> bool {
        let mut items = self.items.iter_mut();
        let item = items.find(|item| item.lines.contains(&(line - 1)) && item.error.is_none());
        item.is_some_and(|item| item.error.replace(error.to_owned()).is_none())
    }

    /// Returns the error of the item that was left out and that defines this name.
    pub(crate) fn error_of(&self, name: &str) -> Option<&str> {
        let defines = |item: &&Item| {
            let lines = &self.lines[item.lines.clone()];
            let mut lines = lines.iter();
            lines.any(|line| {
                let line = line
                    .trim_start_matches("async ")
                    .trim_start_matches("pub ")
                    .trim_start();
                ["fn ", "macro_rules! ", "struct ", "("]
                    .iter()
                    .any(|keyword| {
                        let rest = line
                            .strip_prefix(keyword)
                            .and_then(|rest| rest.strip_prefix(name));
                        rest.is_some_and(|rest| {
                            !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
                        })
                    })
            })
        };
        let mut lost = self.items.iter().filter(|item| item.error.is_some());
        lost.find(defines)?.error.as_deref()
    }

    /// Writes the file, unless it is there with this content.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let mut lines = self.lines.clone();
        for item in self.items.iter().filter(|item| item.error.is_some()) {
            lines[item.lines.start].insert_str(0, "#[cfg(any())] ");
        }
        write(&folder.join(&self.path), &(lines.join("\n") + "\n"))
    }
}

/// Writes a file, unless it is there with this content, so that cargo finds it unchanged.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    Ok(fs::write(path, text)?)
}

/// Finds the items of a file that rustfmt has formatted: all but attributes and the first and the
/// last line of an item is indented.
fn items(lines: &[String]) -> Vec<Item> {
    let mut items = Vec::new();
    let mut start = None;
    for (at, line) in lines.iter().enumerate() {
        let is_comment = line.starts_with("//") && !line.starts_with("///");
        if line.is_empty() || line.starts_with(' ') || line.starts_with("#![") || is_comment {
            continue;
        }
        let start_here = *start.get_or_insert(at);
        if line.starts_with('}') || line.ends_with([';', '}']) {
            items.push(Item {
                lines: start_here..at + 1,
                error: None,
            });
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
    fn leaves_out_one_item() {
        let mut file = File::new("f.rs".into(), TEXT);
        assert!(file.leave_out(8, "no"));
        assert!(!file.leave_out(7, "again"));
        assert!(file.leave_out(12, "neither"));
        assert!(!file.leave_out(5, "a comment"));
        assert_eq!(file.error_of("first"), Some("no"));
        assert_eq!(file.error_of("third"), Some("neither"));
        assert_eq!(file.error_of("fir"), None);
        assert_eq!(file.error_of("second"), None);
    }
}
