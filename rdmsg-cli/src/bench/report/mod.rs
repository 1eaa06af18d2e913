//! The report of a measurement: a JSON file and a Markdown file without private data.
//!
//! ```text
//! content    the report as one JSON value   private  replaces private data in the report
//! markdown   the report as Markdown         files    creates the two files
//! ```

mod content;
mod files;
mod markdown;
mod private;

use std::path::{Path, PathBuf};

use anyhow::Result;

use self::{files::Files, private::Private};
use super::{options::Options, plan::Plan, results::Results, table};
use crate::{doctor, terminal::plain};

/// A report. Its files are created before the measurement and written after it.
#[derive(Debug)]
pub(super) struct Report<'a> {
    files: Files,
    options: &'a Options,
    examined: doctor::Report,
}

impl<'a> Report<'a> {
    /// Creates the files, and examines both hosts.
    ///
    /// # Errors
    ///
    /// Fails if a file exists or cannot be created, or if the peer's name does not resolve to an
    /// address.
    pub(super) fn begin(name: &Path, options: &'a Options) -> Result<Self> {
        Ok(Self {
            files: Files::create(name)?,
            options,
            examined: doctor::examine_with(&options.peer, options.timeout)?,
        })
    }

    /// Writes the results, and returns the paths of the files.
    pub(super) fn finish(self, results: &Results, plan: &Plan) -> Result<[PathBuf; 2]> {
        let private = Private::new(&self.examined, &self.options.peer);
        let mut content = content::of(&self.examined, self.options, results, plan);
        private.hide_in(&mut content);
        let mut tables = Vec::new();
        table::write(&mut tables, results, plan)?;
        let tables = plain(&tables);
        self.files
            .write([&format!("{content:#}\n"), &markdown::of(&content, &tables)])
    }
}
