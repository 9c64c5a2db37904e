//! The files of reflection, by name and by the names that they declare.

use std::collections::HashMap;

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

use super::{envoy, limitador, well_known};

/// All files, encoded.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: Vec<(String, Vec<u8>)>,
    /// The index of the file that declares a full name.
    declared: HashMap<String, usize>,
    services: Vec<String>,
}

impl Files {
    /// Collects the files of all services of the door.
    pub(super) fn of_all() -> Self {
        let mut all = Self::default();
        let ours = envoy::files().into_iter().chain(limitador::files()).chain(well_known::files());
        let theirs = [
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        // Encoded when their crates were built; a test decodes all of them.
        let theirs = theirs.into_iter().filter_map(|set| FileDescriptorSet::decode(set).ok());
        for file in ours.chain(theirs.flat_map(|set| set.file)) {
            all.add(&file);
        }
        all
    }

    /// Returns the full names of the services.
    pub(super) fn services(&self) -> impl Iterator<Item = &str> {
        self.services.iter().map(String::as_str)
    }

    /// Returns the file with this name.
    pub(super) fn named(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(have, _)| have == name);
        found.map(|(_, file)| file.as_slice())
    }

    /// Returns the file that declares a full name: of a service, method, message, field, enum or enum value.
    pub(super) fn that_declares(&self, name: &str) -> Option<&[u8]> {
        let index = self.declared.get(name)?;
        self.files.get(*index).map(|(_, file)| file.as_slice())
    }

    fn add(&mut self, file: &FileDescriptorProto) {
        let package = file.package();
        for message in &file.message_type {
            self.declare_message(package, message);
        }
        for choice in &file.enum_type {
            self.declare_enum(package, choice);
        }
        for service in &file.service {
            let name = self.declare(package, service.name());
            for method in &service.method {
                self.declare(&name, method.name());
            }
            self.services.push(name);
        }
        self.files.push((file.name().to_owned(), file.encode_to_vec()));
    }

    /// Records that the file being added declares this name. Returns the full name.
    fn declare(&mut self, within: &str, name: &str) -> String {
        let full = format!("{within}.{name}");
        self.declared.insert(full.clone(), self.files.len());
        full
    }

    fn declare_message(&mut self, within: &str, message: &DescriptorProto) {
        let name = self.declare(within, message.name());
        for field in &message.field {
            self.declare(&name, field.name());
        }
        for choice in &message.enum_type {
            self.declare_enum(&name, choice);
        }
        // The recursion is as deep as the files nest messages, and those files are fixed.
        for nested in &message.nested_type {
            self.declare_message(&name, nested);
        }
    }

    /// Values of an enum are declared in the scope of the enum itself, as the language demands.
    fn declare_enum(&mut self, within: &str, choice: &EnumDescriptorProto) {
        self.declare(within, choice.name());
        for value in &choice.value {
            self.declare(within, value.name());
        }
    }
}
