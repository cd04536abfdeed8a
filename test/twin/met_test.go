package twin

// honestClasses returns what honest ends must get. The rates, of a million packets of attackers, are at
// most a third of what the sessions produce.
func honestClasses() []class {
	return []class{
		{"answered, by a service, TCP", "", 7500},
		{"answered, by a service, UDP", "", 2900},
		{"answered, by a service, SCTP", "", 3000},
		{"answered, by the server's own address, TCP", "", 1800},
		{"answered, masqueraded, TCP", "", 1800},
		{"answered, masqueraded, UDP", "", 1000},
		{"answered, masqueraded, SCTP", "", 1800},
		{"answered, forwarded", ", TCP", 700},  // in Geneve
		{"answered, forwarded", ", UDP", 450},  // in IP
		{"answered, forwarded", ", SCTP", 450}, // with an option
		{"answered, forwarded to pod", " of the other node", 600},
		{"answered, forwarded to pod", " of this node", 350},
		{"answered, forwarded to the other node", "", 650},
		{"an error, by a service", "", 4500},
		{"an error, masqueraded", "", 1500},
		{"an error, forwarded", "", 600},
		{"fragments, by a service", "", 1300},
		{"fragments, masqueraded", "", 450},
		{"fragments, forwarded", "", 200},
	}
}

// fewestMet is how often a kind must be expected to be judged: they come by sessions, so few are chance.
const fewestMet = 5 * fewest
