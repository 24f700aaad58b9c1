// Package lobby stands between the port of the API and its HTTP server, and keeps those
// who flood it, or hold connections and say nothing, from taking what others need. It
// looks into no frame and costs a request some additions.
//
//   - A connection waits here, for the price of a small stack, until its first byte is
//     there. So silence costs no buffers, and ends after five seconds.
//   - The handshakes of one address take turns once there are very many of them. Who came
//     last is first: floods wait below those who come meanwhile.
//   - When there is no room, connections of the address that has most of them are closed:
//     strangers first, then those that have been idle for longest. A stranger is a
//     connection over which nobody has shown yet that he may ask; there is room for few
//     of them behind their handshake.
//   - What is read from a connection has to belong to requests. The rest, and requests
//     that are given up, are read at a slow pace: floods of PING, SETTINGS and RST_STREAM
//     wait in the sender's own buffers.
//   - Answers to who has shown nothing valid wait, once an address gets many of them.
//
// Addresses of IPv6 count by their first 64 bits. Behind a proxy everybody has one
// address, and the proxy is where floods have to be held.
//
// Go's HTTP/2 itself bounds headers that do not end, streams at once, and answers that a
// peer does not read.
package lobby
