//! DEL: succeeds when nothing is left, or when there was nothing. It can be repeated.

use super::shared::{Means, Netconf, failed, find, undo};
use crate::call::Call;
use crate::error::CniError;
use crate::gojson;
use crate::scratch::{self, Scratch};

pub(super) fn del(call: &Call, means: Means<'_>) -> Result<(), CniError> {
    let folder = &call.conf.data_dir;
    let Some(scratch) = Scratch::open(folder).map_err(|why| failed("opening", folder, &why))? else { return Ok(()) };
    let Some(found) = find(&scratch, &call.conf, &call.attachment)? else { return Ok(()) };
    match Netconf::read(&found.saved.text) {
        Some(saved) => undo(means, &saved.program, &found.saved.text, &call.attachment, &call.netns)?,
        None => {
            // Damaged, by a power failure for instance. What ADD would be given now comes closest.
            let now = Netconf::build_to_undo(&call.conf)
                .map_err(|error| error.during(&format!("{} is damaged, and there is nothing else to go by", scratch.path(&found.name).display())))?;
            undo(means, &now.program, gojson::encode(&now.object).as_bytes(), &call.attachment, &call.netns)?;
        }
    }
    // A file that Go flannel's plugin named after the container may be another interface's: it goes with that one, or with GC.
    if found.name == scratch::name(&call.attachment) {
        scratch.remove(&found.name).map_err(|why| failed("removing", &scratch.path(&found.name), &why))?;
    }
    Ok(())
}
