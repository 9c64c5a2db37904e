//! The roles of a log's fields, and the names that other systems use for them.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Time,
    Client,
    User,
    Method,
    Path,
    Request,
    Host,
    Status,
    Bytes,
    Agent,
    Referer,
    Duration,
    /// The day of a time that another field gives the clock of.
    Date,
}

pub(super) const ROLES: usize = 13;

/// For each role, the attribute that names it to users, and the names that other systems use, in lower case, best
/// first.
pub(super) const WELL_KNOWN: [(Role, &str, &str); ROLES] = [
    (
        Role::Time,
        "time",
        "@timestamp timestamp time ts time_iso8601 time_local msec datetime date_time starttime startutc \
         start_time event_time eventtime started_at edgestarttimestamp requesttime timestamp(ms)",
    ),
    (
        Role::Client,
        "client.ip",
        "client.ip client_ip clientip remote_addr remote_ip remoteip remoteaddr remote_host \
         request.client_ip request.remote_ip source.ip source.address client.address src_ip clienthost \
         clientaddr client_addr c-ip downstream_remote_address httprequest.remoteip httprequest.clientip \
         properties.clientip sourceip source_ip ip client",
    ),
    (
        Role::User,
        "user.id",
        "user.id user_id userid remote_user user.name username enduser.id authuser consumer.username \
         cs-username user",
    ),
    (
        Role::Method,
        "request.method",
        "request.method method request_method http_method http.request.method http.method requestmethod \
         cs-method httprequest.requestmethod httprequest.httpmethod httpmethod properties.httpmethod \
         clientrequestmethod verb",
    ),
    (
        Role::Path,
        "request.path",
        "request.path path request_path uri request_uri request.uri url.path http.target url requestpath \
         cs-uri-stem x-envoy-origin-path x-envoy-original-path httprequest.requesturl httprequest.uri \
         properties.originalrequesturiwithargs properties.requesturi clientrequesturi clientrequestpath \
         resourcepath http.url url.full url.original target",
    ),
    (Role::Request, "request", "request request_line requestline"),
    (
        Role::Host,
        "request.host",
        "request.host http_host server_name vhost url.domain requesthost http.host :authority authority \
         x-host-header cs(host) cs-host properties.originalhost properties.host properties.hostname \
         clientrequesthost request.headers.host domainname server.address host",
    ),
    (
        Role::Status,
        "response.status",
        "response.status status status_code statuscode response_code http.response.status_code \
         http.status_code downstreamstatus sc-status httprequest.status properties.httpstatus \
         properties.httpstatuscode edgeresponsestatus response",
    ),
    (
        Role::Bytes,
        "response.bytes",
        "response.bytes bytes_sent body_bytes_sent bytes response_size size http.response.body.bytes \
         downstreamcontentsize bytes_out response.size httprequest.responsesize properties.sentbytes \
         properties.responsebytes edgeresponsebytes responselength sc-bytes",
    ),
    (
        Role::Agent,
        "request.header.user-agent",
        "request.header.user-agent user_agent useragent http_user_agent user_agent.original \
         request.headers.user-agent.0 request.headers.user-agent user-agent httprequest.useragent \
         properties.useragent clientrequestuseragent cs(user-agent) agent",
    ),
    (
        Role::Referer,
        "request.header.referer",
        "request.header.referer referer http_referer referrer request.headers.referer.0 \
         request.headers.referer httprequest.referer properties.referer clientrequestreferer cs(referer)",
    ),
    (
        Role::Duration,
        "request.duration",
        "request.duration request_time request_time_ms duration_ms duration_us duration_ns \
         response_time_ms latency_ms elapsed_ms took_ms time-taken latencies.request httprequest.latency \
         properties.timetaken responselatency duration",
    ),
    (Role::Date, "date", "date"),
];

/// Returns the role that a name means, with its rank among the names of the role, from 1.
pub(super) fn well_known(lower: &str) -> Option<(Role, usize)> {
    WELL_KNOWN.iter().find_map(|(role, _, names)| {
        names.split(' ').position(|have| have == lower).map(|rank| (*role, rank + 1))
    })
}

/// A header line of CSV is recognised by such a name.
pub(super) fn means_time(name: &str) -> bool {
    matches!(well_known(&name.to_ascii_lowercase()), Some((Role::Time | Role::Date, _)))
}
