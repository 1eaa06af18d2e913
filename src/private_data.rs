use crate::error::Error;

/// Returns an error if private data does not fit.
pub(crate) fn check_private_data(
    data: &[u8],
    limit: usize,
    place: &'static str,
) -> Result<(), Error> {
    if data.len() > limit {
        return Err(Error::PrivateDataTooLong {
            len: data.len(),
            limit,
            place,
        });
    }
    Ok(())
}
