//! Executes DEL: the delegate undoes ADD, then the saved configuration is removed. DEL succeeds without one,
//! so that the runtime can repeat it.

use super::shared::{Context, failed, find, undo_saved};
use crate::attachment_store::{self, AttachmentStore};
use crate::call::Call;
use crate::error::CniError;

pub(super) fn del(call: &Call, context: Context<'_>) -> Result<(), CniError> {
    let folder = &call.conf.data_dir;
    let Some(attachment_store) =
        AttachmentStore::open(folder).map_err(|why| failed("opening", folder, &why))?
    else {
        return Ok(());
    };
    let own = attachment_store::name(&call.attachment);
    let Some(found) = find(&attachment_store, &call.conf, &call.attachment)? else {
        // An ADD that was killed before it wrote the file may have left a mark. A mark that stays does no harm.
        let _ = attachment_store.remove(&own);
        return Ok(());
    };
    undo_saved(context, &call.conf, &found.saved.text, &call.attachment, &call.netns)?;
    // Go flannel's plugin names files after the container, so this file may belong to another interface. DEL of that interface or GC removes it.
    if found.name == own {
        attachment_store
            .remove(&found.name)
            .map_err(|why| failed("removing", &attachment_store.path(&found.name), &why))?;
    }
    Ok(())
}
