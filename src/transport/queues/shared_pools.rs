use std::sync::{Arc, Mutex, Weak};

use super::shared_receives::SharedReceives;
use crate::{os::lock, status::OsError};

/// What connections on one device receive into that share receives: one for each kind in use.
#[derive(Debug, Default)]
pub(crate) struct SharedPools(Mutex<Vec<Weak<SharedReceives>>>);

impl SharedPools {
    /// The receives of this kind, made when there are none.
    pub(crate) fn get(
        &self,
        count: u32,
        size: usize,
        make: impl FnOnce() -> Result<SharedReceives, OsError>,
    ) -> Result<Arc<SharedReceives>, OsError> {
        let mut all = lock(&self.0);
        let of_this_kind = all
            .iter()
            .filter_map(Weak::upgrade)
            .find(|shared| shared.is(count, size));
        if let Some(shared) = of_this_kind {
            return Ok(shared);
        }
        let shared = Arc::new(make()?);
        all.retain(|shared| shared.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(shared)
    }
}
