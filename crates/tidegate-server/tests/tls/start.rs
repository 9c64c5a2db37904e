//! Errors that prevent the start, and warnings.

use tidegate::config::TlsSettings;
use tidegate_server::{TlsError, check_tls};

use super::made::{Authority, Folder};

fn settings(folder: &Folder) -> TlsSettings {
    let mut settings = TlsSettings::new(folder.path("server.pem"), folder.path("server.key"));
    settings.client_ca = Some(folder.path("ca.pem"));
    settings
}

#[test]
fn what_cannot_be_used_is_told_with_its_file_and_what_would_work() {
    let folder = Folder::new();
    assert_eq!(check_tls(&settings(&folder)).unwrap(), Vec::<String>::new());
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let damaged = folder.server.key.replace("-----END PRIVATE KEY-----", "");
    let other = Authority::new().sign(2999);
    for (name, text, told) in [
        (
            "server.pem",
            "",
            "the certificate's file FILE holds no certificate in PEM; one begins with the line -----BEGIN CERTIFICATE-----",
        ),
        ("server.pem", folder.server.key.as_str(), "the certificate's file FILE holds no certificate in PEM"),
        (
            "server.key",
            folder.server.cert.as_str(),
            "the certificate key's file FILE holds no private key in PEM; one begins with",
        ),
        ("server.key", encrypted, "the certificate key's file FILE holds an encrypted key"),
        ("server.key", &damaged, "the certificate key's file FILE is damaged"),
        ("server.key", other.key.as_str(), "the key in FILE is not that of the first certificate in"),
        ("ca.pem", "", "the client CA's file FILE holds no certificate in PEM"),
        (
            "ca.pem",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "the client CA's file FILE cannot be used: certificate 1 of it",
        ),
    ] {
        let good = std::fs::read_to_string(folder.path(name)).unwrap();
        folder.write(name, text);
        let error = check_tls(&settings(&folder)).unwrap_err();
        folder.write(name, &good);
        let said = error.to_string();
        assert!(said.starts_with(&told.replace("FILE", &folder.name(name))), "{name}: {said}");
        assert!(error.is_a_mistake() && !said.contains("AAAA"), "{said}");
        let key = folder.server.key.lines().nth(1).unwrap();
        assert!(!format!("{said} {error:?}").contains(key), "{said}");
    }
    std::fs::remove_file(folder.path("server.key")).unwrap();
    let error = check_tls(&settings(&folder)).unwrap_err();
    assert!(matches!(&error, TlsError::File { path, .. } if *path == folder.path("server.key")), "{error}");
    assert!(!error.is_a_mistake() && error.to_string().contains("cannot be read"), "{error}");
}

#[test]
fn dates_and_permissions_are_warned_of() {
    let folder = Folder::new();
    folder.put("server", &folder.ca.sign(2002));
    let warned = check_tls(&settings(&folder)).unwrap();
    assert!(
        warned[0].contains("ended at 2002-12-31T00:00:00Z") && warned[0].contains("server.pem"),
        "{warned:?}"
    );
    folder.put("server", &folder.server);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let everybody = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(folder.path("server.key"), everybody).unwrap();
        let warned = check_tls(&settings(&folder)).unwrap();
        assert!(warned.len() == 1 && warned[0].contains("(mode 644)"), "{warned:?}");
    }
}
