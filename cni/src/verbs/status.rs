//! Executes STATUS: whether a new pod would have a network, according to subnet.env and the daemon's status
//! file.

use crate::conf::Conf;
use crate::error::{CniError, NOT_AVAILABLE};
use crate::status;
use crate::subnet_env;
use std::time::Duration;

pub(super) fn status(conf: &Conf) -> Result<(), CniError> {
    subnet_env::load(&conf.subnet_file, Duration::ZERO)
        .map_err(|error| CniError { code: NOT_AVAILABLE, ..error })?;
    status::obstacle(&conf.subnet_file).map_or(Ok(()), |why| Err(CniError::new(NOT_AVAILABLE, why)))
}
