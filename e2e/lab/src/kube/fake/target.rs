//! The path and the query of a request: which objects it asks for, and whether a user may.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::kube::users::User;

/// Resource, namespace (empty for Nodes) and name.
pub(super) type Key = (String, String, String);

/// Status code and message.
pub(super) struct ApiError(pub(super) u16, pub(super) String);

pub(super) fn refuse_request<T>(code: u16, message: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError(code, message.into()))
}

/// Groups and resources of the fake.
const KNOWN: [(&str, &str); 5] = [
    ("", "nodes"),
    ("", "pods"),
    ("", "configmaps"),
    ("", "events"),
    ("discovery.k8s.io", "endpointslices"),
];

pub(super) struct Target {
    group: String,
    pub(super) resource: String,
    pub(super) namespace: String,
    name: Option<String>,
    pub(super) is_status: bool,
    query: BTreeMap<String, String>,
    pub(super) selector: Selector,
}

impl Target {
    pub(super) fn parse_path_and_query(text: &str) -> Option<Target> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let words: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match words.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            _ => ("", rest),
        };
        let (resource, rest) = rest.split_first()?;
        KNOWN.contains(&(group, *resource)).then_some(())?;
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), decode_percent_encoding(value)));
        let query: BTreeMap<String, String> = pairs.collect();
        Some(Target {
            group: group.to_owned(),
            resource: (*resource).to_owned(),
            namespace: namespace.to_owned(),
            name: rest.first().map(|name| (*name).to_owned()),
            is_status: rest.get(1) == Some(&"status"),
            selector: Selector::from_query(&query, namespace),
            query,
        })
    }

    pub(super) fn query_parameter_is(&self, name: &str, value: &str) -> bool {
        self.query.get(name).is_some_and(|known| known == value)
    }

    /// An empty value counts as absent.
    pub(super) fn query_number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.query.get(name).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => refuse_request(400, format!("{name} is not a number")),
            },
        }
    }

    pub(super) fn verb(&self, method: &str) -> &'static str {
        match method {
            "GET" if self.name.is_some() => "get",
            "GET"
                if self.query_parameter_is("watch", "1")
                    || self.query_parameter_is("watch", "true") =>
            {
                "watch"
            }
            "GET" => "list",
            "POST" => "create",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "unknown",
        }
    }

    /// `None` for a collection.
    pub(super) fn key(&self) -> Option<Key> {
        Some(self.key_of(self.name.as_ref()?))
    }

    pub(super) fn key_of(&self, name: &str) -> Key {
        let (resource, namespace) = (self.resource.clone(), self.namespace.clone());
        (resource, namespace, name.to_owned())
    }

    /// Refuses what the user's role does not allow.
    pub(super) fn require_right(&self, user: User, verb: &str) -> Result<(), ApiError> {
        let part = if self.is_status { "/status" } else { "" };
        let resource = format!("{}{part}", self.resource);
        let wanted = [("apiGroups", &*self.group), ("resources", &*resource), ("verbs", verb)];
        let has = |list: &Value, word: &str| {
            let mut words = list.as_array().into_iter().flatten();
            words.any(|known| known == word)
        };
        let allows = |rule: &Value| wanted.iter().all(|(list, word)| has(&rule[list], word));
        let rules = user.rules().unwrap_or_default();
        if user == User::Admin || rules.as_array().into_iter().flatten().any(allows) {
            return Ok(());
        }
        let (name, group) = (user.name(), &self.group);
        let who = format!("{} is forbidden: User \"{name}\"", self.resource);
        let what = format!("{verb} resource \"{resource}\" in API group \"{group}\"");
        refuse_request(403, format!("{who} cannot {what} at the cluster scope"))
    }
}

/// Of a list or a watch: members of an object, and their values, from the field selector, the label selector and the namespace.
pub(super) struct Selector(Vec<(Vec<String>, String)>);

impl Selector {
    fn from_query(query: &BTreeMap<String, String>, namespace: &str) -> Selector {
        let terms = |name: &str| {
            let text = query.get(name).cloned().unwrap_or_default();
            let terms = text.split(',').filter_map(|term| term.split_once('='));
            let terms = terms.map(|(name, value)| (name.to_owned(), value.to_owned()));
            terms.collect::<Vec<_>>()
        };
        let of_field = |field: &str| field.split('.').map(str::to_owned).collect();
        let of_label = |label: String| vec!["metadata".to_owned(), "labels".to_owned(), label];
        let fields = terms("fieldSelector").into_iter();
        let fields = fields.map(|(field, value)| (of_field(&field), value));
        let labels = terms("labelSelector").into_iter();
        let labels = labels.map(|(label, value)| (of_label(label), value));
        let mut all: Vec<_> = fields.chain(labels).collect();
        if !namespace.is_empty() {
            all.push((of_field("metadata.namespace"), namespace.to_owned()));
        }
        Selector(all)
    }

    pub(super) fn takes(&self, object: &Value) -> bool {
        self.0.iter().all(|(members, value)| {
            let found = members.iter().fold(object, |object, name| &object[name]);
            found == value.as_str()
        })
    }
}

/// Removes the percent encoding.
fn decode_percent_encoding(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(part.len().min(2));
        bytes.extend(u8::from_str_radix(digits, 16).ok());
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
