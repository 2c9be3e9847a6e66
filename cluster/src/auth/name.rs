use std::fmt;
use std::str::FromStr;

use crate::codec::{DecodeError, EntityType, Put, Reader, Result};

const TYPES: [(EntityType, &str); 6] = [
    (EntityType::AUTH, "auth"),
    (EntityType::MON, "mon"),
    (EntityType::OSD, "osd"),
    (EntityType::MDS, "mds"),
    (EntityType::MGR, "mgr"),
    (EntityType::CLIENT, "client"),
];

/// Who authenticates: `client.admin`, `osd.3` (`EntityName`, `src/common/entity_name.h`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthName {
    pub kind: EntityType,
    pub id: String,
}

/// A name without a type, or with one that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no entity name: write TYPE.ID, as in client.admin")]
pub struct NameError(pub String);

impl AuthName {
    pub fn client(id: &str) -> AuthName {
        AuthName {
            kind: EntityType::CLIENT,
            id: id.to_owned(),
        }
    }

    /// Daemons of a cluster, whom `auth_cluster_required` governs.
    pub fn is_daemon(&self) -> bool {
        self.kind != EntityType::CLIENT
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<AuthName> {
        let kind = r.u32()?;
        let id = r.string()?;
        let kind = u8::try_from(kind).map_err(|_| DecodeError::malformed("entity name type"))?;
        Ok(AuthName {
            kind: EntityType(kind),
            id: id.to_owned(),
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(u32::from(self.kind.0));
        out.put_string(&self.id);
    }
}

impl FromStr for AuthName {
    type Err = NameError;

    fn from_str(s: &str) -> Result<AuthName, NameError> {
        let error = || NameError(s.to_owned());
        let (kind, id) = s.split_once('.').ok_or_else(error)?;
        let (kind, _) = TYPES
            .iter()
            .find(|(_, name)| *name == kind)
            .ok_or_else(error)?;
        Ok(AuthName {
            kind: *kind,
            id: id.to_owned(),
        })
    }
}

impl fmt::Display for AuthName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_shown() {
        let name: AuthName = "client.rbd.mirror".parse().unwrap();
        assert_eq!(name, AuthName::client("rbd.mirror"));
        assert_eq!(name.to_string(), "client.rbd.mirror");
        assert!("admin".parse::<AuthName>().is_err());
        assert_eq!(
            "host.a".parse::<AuthName>().unwrap_err().to_string(),
            "'host.a' is no entity name: write TYPE.ID, as in client.admin"
        );
    }
}
