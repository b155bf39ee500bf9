//! What several verbs use: reading, building and finding the delegate's configuration, and undoing ADD.

use crate::attachment::Attachment;
use crate::attachment_store::{self, AttachmentStore};
use crate::call::Verb;
use crate::conf::Conf;
use crate::delegate::{Delegate, DelegateError, Order};
use crate::error::{CniError, INTERNAL, IO_FAILURE};
use crate::netconf::encode;
use crate::subnet_env::{self, SubnetEnv};
use serde_json::{Map, Value};
use std::io;
use std::path::Path;
use std::time::Duration;

#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub delegate: &'a dyn Delegate,
    /// How long ADD waits for subnet.env.
    pub patience: Duration,
}

/// A delegate's configuration, and its program from the key `type`.
pub(super) struct Netconf {
    pub(super) object: Map<String, Value>,
    pub(super) program: String,
}

impl Netconf {
    /// A saved configuration; `None` if it is not a JSON object with a `type`.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        match serde_json::from_slice(text).ok()? {
            Value::Object(object) => Self::of(object),
            _ => None,
        }
    }

    pub(super) fn of(object: Map<String, Value>) -> Option<Self> {
        let program = object.get("type")?.as_str()?.to_owned();
        Some(Self { object, program })
    }

    /// For ADD or CHECK.
    pub(super) fn build(conf: &Conf, patience: Duration) -> Result<Self, CniError> {
        // Report an invalid configuration before waiting for subnet.env.
        conf.delegate()?;
        let env = subnet_env::load(&conf.subnet_file, patience)?;
        Self::of(crate::netconf::build(conf, &env)?)
            .ok_or_else(|| CniError::new(INTERNAL, "the delegate has no type"))
    }

    /// For DEL or GC. A placeholder subnet replaces an unusable subnet.env, because delegates find an
    /// attachment by network and container.
    pub(super) fn build_to_undo(conf: &Conf) -> Result<Self, CniError> {
        conf.delegate()?;
        let env = subnet_env::load(&conf.subnet_file, Duration::ZERO)
            .unwrap_or_else(|_| SubnetEnv::any());
        Self::of(crate::netconf::build(conf, &env)?)
            .ok_or_else(|| CniError::new(INTERNAL, "the delegate has no type"))
    }
}

/// The network's name in a saved configuration; `None` if it is unreadable.
pub(super) fn network_of(saved: &[u8]) -> Option<String> {
    let saved: Value = serde_json::from_slice(saved).ok()?;
    Some(saved.get("name")?.as_str()?.to_owned())
}

/// A saved configuration, and the name of its file.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) saved: attachment_store::Saved,
}

/// Finds the saved configuration of an attachment. Go flannel's plugin names the file only after the
/// container, for any interface. Without a file of its own, an interface has this one, if it belongs to the
/// call's network.
pub(super) fn find(
    attachment_store: &AttachmentStore,
    conf: &Conf,
    attachment: &Attachment,
) -> Result<Option<Found>, CniError> {
    let name = attachment_store::name(attachment);
    if let Some(saved) = attachment_store.read(&name).map_err(reading(attachment_store, &name))? {
        return Ok(Some(Found { name, saved }));
    }
    let name = attachment.container.clone();
    let saved = attachment_store.read(&name).map_err(reading(attachment_store, &name))?;
    let ours =
        |saved: &attachment_store::Saved| network_of(&saved.text).as_ref() == Some(&conf.name);
    Ok(saved.filter(ours).map(|saved| Found { name, saved }))
}

/// Undoes ADD with the saved configuration. If that is damaged, or names a plugin that does not exist, the
/// configuration that ADD would use now is the closest replacement.
pub(super) fn undo_saved(
    context: Context<'_>,
    conf: &Conf,
    saved: &[u8],
    attachment: &Attachment,
    netns: &str,
) -> Result<(), CniError> {
    // This plugin is never its own delegate: it would find the same file again, without end.
    let read = Netconf::read(saved).filter(|netconf| netconf.program != "flannel");
    if let Some(netconf) = read {
        match undo(context, &netconf.program, saved, attachment, netns) {
            Err(DelegateError::NotFound(_)) => {}
            done => return done.map_err(not_undone),
        }
    }
    let now = Netconf::build_to_undo(conf).map_err(|error| {
        error.during("the saved configuration is damaged, and the plugin cannot build another")
    })?;
    let text = encode(&now.object);
    undo(context, &now.program, text.as_bytes(), attachment, netns).map_err(not_undone)
}

/// Calls the delegate with DEL, which undoes its ADD.
pub(super) fn undo(
    context: Context<'_>,
    program: &str,
    netconf: &[u8],
    attachment: &Attachment,
    netns: &str,
) -> Result<(), DelegateError> {
    let order = Order { program, verb: Verb::Del, attachment, netns, netconf };
    context.delegate.call(&order).map(drop)
}

fn not_undone(error: DelegateError) -> CniError {
    error.into_error().during("failed to delegate del")
}

pub(super) fn reading<'a>(
    attachment_store: &'a AttachmentStore,
    name: &'a str,
) -> impl Fn(io::Error) -> CniError + 'a {
    move |why| failed("reading", &attachment_store.path(name), &why)
}

/// The error of a failed access to the file system.
pub(super) fn failed(what: &str, path: &Path, why: &io::Error) -> CniError {
    CniError::new(IO_FAILURE, format!("{what} {}: {why}", path.display()))
        .details("check the free space and the permissions of the folder, or set dataDir")
}

pub(super) fn never_started(error: &DelegateError) -> bool {
    matches!(error, DelegateError::NotFound(_) | DelegateError::NotStarted(_))
}
