//! STATUS: whether ADD would succeed now, by subnet.env and by what the daemon says.

use crate::conf::Conf;
use crate::error::{CniError, NOT_AVAILABLE};
use crate::status::{self, Daemon};
use crate::subnet_env;
use std::time::Duration;

pub(super) fn status(conf: &Conf) -> Result<(), CniError> {
    subnet_env::load(&conf.subnet_file, Duration::ZERO).map_err(|error| CniError { code: NOT_AVAILABLE, ..error })?;
    match status::of(&conf.subnet_file) {
        Daemon::Unknown | Daemon::Ready => Ok(()),
        Daemon::NotReady(why) => Err(CniError::new(NOT_AVAILABLE, why)),
    }
}
