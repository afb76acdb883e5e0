//! The messages of etcd's gRPC API (`rpc.proto` and `kv.proto` of etcd 3.4): only the fields that are used. A oneof is
//! written as optional fields of which one is set, which is the same on the wire.

use prost::Message;

/// A request, and where it is sent.
pub trait Call: Message + 'static {
    /// Service and method.
    const PATH: &'static str;
    /// The reply.
    type Reply: Message + Default + 'static;
}

macro_rules! messages {
    ($($name:ident { $($field:ident: $type:ty [$($attribute:tt)*]),* $(,)? })*) => {$(
        #[derive(Clone, PartialEq, Message)]
        pub struct $name {
            $(#[prost($($attribute)*)] pub $field: $type,)*
        }
    )*};
}

macro_rules! calls {
    ($($path:literal: $request:ident => $reply:ident;)*) => {$(
        impl Call for $request {
            const PATH: &'static str = concat!("/etcdserverpb.", $path);
            type Reply = $reply;
        }
    )*};
}

calls! {
    "KV/Range": RangeRequest => RangeResponse;
    "KV/Txn": TxnRequest => TxnResponse;
    "Lease/LeaseGrant": LeaseGrantRequest => LeaseGrantResponse;
    "Lease/LeaseRevoke": LeaseRevokeRequest => LeaseRevokeResponse;
    "Lease/LeaseKeepAlive": LeaseKeepAliveRequest => LeaseKeepAliveResponse;
    "Lease/LeaseTimeToLive": LeaseTimeToLiveRequest => LeaseTimeToLiveResponse;
    "Watch/Watch": WatchRequest => WatchResponse;
    "Auth/Authenticate": AuthenticateRequest => AuthenticateResponse;
    "Maintenance/Status": StatusRequest => StatusResponse;
    "Maintenance/Alarm": AlarmRequest => AlarmResponse;
    "Cluster/MemberList": MemberListRequest => MemberListResponse;
}

messages! {
    Header {
        cluster_id: u64 [uint64, tag = 1],
        member_id: u64 [uint64, tag = 2],
        revision: i64 [int64, tag = 3],
        raft_term: u64 [uint64, tag = 4],
    }

    KeyValue {
        key: Vec<u8> [bytes = "vec", tag = 1],
        create_revision: i64 [int64, tag = 2],
        mod_revision: i64 [int64, tag = 3],
        value: Vec<u8> [bytes = "vec", tag = 5],
        lease: i64 [int64, tag = 6],
    }

    RangeRequest {
        key: Vec<u8> [bytes = "vec", tag = 1],
        range_end: Vec<u8> [bytes = "vec", tag = 2],
        limit: i64 [int64, tag = 3],
        sort_order: i32 [int32, tag = 5],
        sort_target: i32 [int32, tag = 6],
    }

    RangeResponse {
        kvs: Vec<KeyValue> [message, repeated, tag = 2],
        more: bool [bool, tag = 3],
    }

    PutRequest {
        key: Vec<u8> [bytes = "vec", tag = 1],
        value: Vec<u8> [bytes = "vec", tag = 2],
        lease: i64 [int64, tag = 3],
        ignore_value: bool [bool, tag = 5],
    }

    PutResponse {}

    DeleteRangeRequest {
        key: Vec<u8> [bytes = "vec", tag = 1],
    }

    DeleteRangeResponse {}

    RequestOp {
        range: Option<RangeRequest> [message, optional, tag = 1],
        put: Option<PutRequest> [message, optional, tag = 2],
        delete: Option<DeleteRangeRequest> [message, optional, tag = 3],
        txn: Option<Box<TxnRequest>> [message, optional, boxed, tag = 4],
    }

    ResponseOp {
        range: Option<RangeResponse> [message, optional, tag = 1],
        put: Option<PutResponse> [message, optional, tag = 2],
        delete: Option<DeleteRangeResponse> [message, optional, tag = 3],
        txn: Option<Box<TxnResponse>> [message, optional, boxed, tag = 4],
    }

    Compare {
        target: i32 [int32, tag = 2],
        key: Vec<u8> [bytes = "vec", tag = 3],
        create_revision: Option<i64> [int64, optional, tag = 5],
        mod_revision: Option<i64> [int64, optional, tag = 6],
        range_end: Vec<u8> [bytes = "vec", tag = 64],
    }

    TxnRequest {
        compare: Vec<Compare> [message, repeated, tag = 1],
        success: Vec<RequestOp> [message, repeated, tag = 2],
        failure: Vec<RequestOp> [message, repeated, tag = 3],
    }

    TxnResponse {
        header: Option<Header> [message, optional, tag = 1],
        succeeded: bool [bool, tag = 2],
        responses: Vec<ResponseOp> [message, repeated, tag = 3],
    }

    LeaseGrantRequest {
        ttl: i64 [int64, tag = 1],
        id: i64 [int64, tag = 2],
    }

    LeaseGrantResponse {
        header: Option<Header> [message, optional, tag = 1],
        id: i64 [int64, tag = 2],
        ttl: i64 [int64, tag = 3],
    }

    LeaseRevokeRequest {
        id: i64 [int64, tag = 1],
    }

    LeaseRevokeResponse {}

    LeaseKeepAliveRequest {
        id: i64 [int64, tag = 1],
    }

    LeaseKeepAliveResponse {
        header: Option<Header> [message, optional, tag = 1],
        ttl: i64 [int64, tag = 3],
    }

    LeaseTimeToLiveRequest {
        id: i64 [int64, tag = 1],
    }

    LeaseTimeToLiveResponse {
        ttl: i64 [int64, tag = 3],
        granted: i64 [int64, tag = 4],
    }

    WatchRequest {
        create: Option<WatchCreateRequest> [message, optional, tag = 1],
    }

    WatchCreateRequest {
        key: Vec<u8> [bytes = "vec", tag = 1],
        start_revision: i64 [int64, tag = 3],
        filters: Vec<i32> [int32, repeated, tag = 5],
    }

    WatchResponse {
        canceled: bool [bool, tag = 4],
        compact_revision: i64 [int64, tag = 5],
        events: Vec<Event> [message, repeated, tag = 11],
    }

    Event {
        kv: Option<KeyValue> [message, optional, tag = 2],
    }

    AuthenticateRequest {
        name: String [string, tag = 1],
        password: String [string, tag = 2],
    }

    AuthenticateResponse {
        token: String [string, tag = 2],
    }

    StatusRequest {}

    StatusResponse {
        header: Option<Header> [message, optional, tag = 1],
        version: String [string, tag = 2],
        leader: u64 [uint64, tag = 4],
    }

    AlarmRequest {}

    AlarmResponse {
        alarms: Vec<AlarmMember> [message, repeated, tag = 2],
    }

    AlarmMember {
        alarm: i32 [int32, tag = 2],
    }

    MemberListRequest {}

    MemberListResponse {
        members: Vec<ListedMember> [message, repeated, tag = 2],
    }

    ListedMember {
        id: u64 [uint64, tag = 1],
    }
}
