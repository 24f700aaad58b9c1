// Package edictum is the interface that Edictum's SDKs speak: sessions, approvals
// and events below /v1/, on the port of the API. An SDK is moved to a cluster by
// changing one address.
//
// It is a client of the API of its own node and nothing more: each request becomes
// calls of that, in the namespace of its key, and what comes of them is said in the
// words that the SDKs know. So it holds no rule, no state and no order of its own,
// and a limit that is counted here is one of the service.
//
// The SDKs send every request again that is answered with 5xx, and have no key by
// which a repeat is known. So 503 is answered only where nothing was applied; where
// that is not known the node repeats the request itself, under one id, and answers
// 409 in the end, which no SDK repeats, and 429 to events, of which a repeat is known.
package edictum
