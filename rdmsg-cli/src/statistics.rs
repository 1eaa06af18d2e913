//! Exports statistics for `rdmsg top`.

use anyhow::{Context, Result};
use rdmsg::observe::Export;

/// If `is_wanted` is true, exports the statistics until the returned value is dropped.
pub(crate) fn export(is_wanted: bool) -> Result<Option<Export>> {
    let export = is_wanted.then(Export::start).transpose();
    export.context("--statistics: cannot export the statistics")
}
