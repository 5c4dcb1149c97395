{{/* Scheduler and worker have no port: they touch a file at each beat. */}}
{{- define "rdukit.beats" -}}
startupProbe:
  exec: {command: [python, -m, rdukit_platform.heartbeat_file, {{ . }}]}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  exec: {command: [python, -m, rdukit_platform.heartbeat_file, {{ . }}]}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 3
readinessProbe:
  exec: {command: [python, -m, rdukit_platform.heartbeat_file, {{ . }}]}
  periodSeconds: 20
  timeoutSeconds: 10
{{- end -}}

{{/* The node's daemon answers at its socket. */}}
{{- define "rdukit.answers" -}}
startupProbe:
  exec: {command: [rdukit, node, status]}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 30
livenessProbe:
  exec: {command: [rdukit, node, status]}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 3
readinessProbe:
  exec: {command: [rdukit, node, status]}
  periodSeconds: 20
  timeoutSeconds: 10
{{- end -}}
