//! DEL: succeeds when nothing is left, or when there was nothing. It can be repeated.

use super::shared::{Context, Netconf, failed, find, undo};
use crate::attachment_store::{self, AttachmentStore};
use crate::call::Call;
use crate::error::CniError;
use crate::gojson;

pub(super) fn del(call: &Call, context: Context<'_>) -> Result<(), CniError> {
    let folder = &call.conf.data_dir;
    let Some(attachment_store) =
        AttachmentStore::open(folder).map_err(|why| failed("opening", folder, &why))?
    else {
        return Ok(());
    };
    let Some(found) = find(&attachment_store, &call.conf, &call.attachment)? else {
        return Ok(());
    };
    match Netconf::read(&found.saved.text) {
        Some(saved) => undo(
            context,
            &saved.program,
            &found.saved.text,
            &call.attachment,
            &call.netns,
        )?,
        None => {
            // Damaged, by a power failure for instance. What ADD would be given now comes closest.
            let now = Netconf::build_to_undo(&call.conf).map_err(|error| {
                error.during(&format!(
                    "{} is damaged, and there is nothing else to go by",
                    attachment_store.path(&found.name).display()
                ))
            })?;
            undo(
                context,
                &now.program,
                gojson::encode(&now.object).as_bytes(),
                &call.attachment,
                &call.netns,
            )?;
        }
    }
    // A file that Go flannel's plugin named after the container may be another interface's: it goes with that one, or with GC.
    if found.name == attachment_store::name(&call.attachment) {
        attachment_store
            .remove(&found.name)
            .map_err(|why| failed("removing", &attachment_store.path(&found.name), &why))?;
    }
    Ok(())
}
